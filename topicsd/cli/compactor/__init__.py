"""`topicsd compactor`: upkeep of shared topics in a process of its own."""
