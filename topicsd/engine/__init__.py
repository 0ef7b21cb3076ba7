"""The engine of one shard: its topics and every operation on them. It has no HTTP and no other shard."""
