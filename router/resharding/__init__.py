"""Change the number of shards of a running server."""
