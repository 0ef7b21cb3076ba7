"""Decide who is woken next, and how hard pressed the shard is."""
