"""Facts about a data directory, for `inspect`."""
