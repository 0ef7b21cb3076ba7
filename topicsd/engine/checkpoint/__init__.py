"""Turn the log into segments and a snapshot, and load them again at a start."""
