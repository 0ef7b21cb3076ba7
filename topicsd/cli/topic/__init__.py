"""`topicsd topic`: what operators do with one topic of a running server, one module for each action."""
