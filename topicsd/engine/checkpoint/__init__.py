"""Checkpoints: write the log into segments and a snapshot, and load these at a start."""
