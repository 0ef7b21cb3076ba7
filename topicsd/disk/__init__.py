"""Disk access: the interface for all calls, the names in a data directory, and atomic file replacement."""
