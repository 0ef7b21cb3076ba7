"""Snapshots of a shard, what a checkpoint publishes, and what becomes of the files it drops."""
