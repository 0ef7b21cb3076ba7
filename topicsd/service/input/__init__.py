"""Decoders and checks of bodies, queries and positions."""
