"""Checks of everything in a data directory."""
