"""The commands about a running server: `topicsd topic`, one module for each action, and `topicsd shards`."""
