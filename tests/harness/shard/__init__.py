"""One shard under the control of a test."""
