"""Decoders and checks of what a request carries."""
