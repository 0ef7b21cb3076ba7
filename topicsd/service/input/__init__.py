"""Decode and check what a request carries."""
