"""Decide what a repair of a data directory does, and do it."""
