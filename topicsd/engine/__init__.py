"""The engine of one shard: topics, and what can be done with them. It knows no HTTP and no other shard."""
