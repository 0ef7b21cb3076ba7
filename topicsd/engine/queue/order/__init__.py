"""The order in which the ready jobs of a queue are claimed: by seq, by tag, by priority, fairly."""
