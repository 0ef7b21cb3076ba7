"""Transfers: records that move from one topic to another, each exactly once."""
