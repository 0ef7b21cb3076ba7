"""A worker: one process that owns one shard."""
