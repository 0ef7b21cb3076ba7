"""Schemas of topics: compiled validators, and which changes keep every valid record valid."""
