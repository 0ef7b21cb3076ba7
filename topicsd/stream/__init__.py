"""Follow topics as they grow, on this shard and on others."""
