"""A data directory that another process may own: read it without changing it."""
