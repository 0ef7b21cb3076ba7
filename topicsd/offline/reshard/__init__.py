"""The change of the number of shards of a stopped data directory."""
