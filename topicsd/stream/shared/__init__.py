"""Shared topics as streams and reads of the API see them: the same answers as those of local topics."""
