"""Benchmarks of one shard without HTTP."""
