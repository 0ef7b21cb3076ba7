"""The write-ahead log of one shard: frames, batches, files, and how they come back after a crash."""
