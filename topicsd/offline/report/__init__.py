"""The reports about a data directory that `inspect` shows."""
