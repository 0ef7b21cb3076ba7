"""The write-ahead log of one shard: frames, batches, files, and recovery after a crash."""
