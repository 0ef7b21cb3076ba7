"""Backups: all files of a data directory at one point, in an object store."""
