"""What is delivered as it comes: feeds of topics, here and of other shards, and the streams that follow them."""
