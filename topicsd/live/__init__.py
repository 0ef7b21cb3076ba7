"""What is delivered as it comes: feeds of topics, here and of other shards, and who follows them."""
