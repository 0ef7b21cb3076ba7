"""Reads: records after a position, from memory, the log or segments."""
