"""Ownership: which topics this node may write, and what it does with those that it may not."""
