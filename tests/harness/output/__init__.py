"""Readers of what a program shows: its output, metrics, images, documents and calls."""
