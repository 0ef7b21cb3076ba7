"""Requests, limits and streams that concern other shards."""
