"""Formats of the objects of shared topics."""
