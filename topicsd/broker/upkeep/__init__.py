"""Upkeep of shared topics: compaction and vacuum."""
