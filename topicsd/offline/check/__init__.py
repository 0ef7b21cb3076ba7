"""Check everything in a data directory."""
