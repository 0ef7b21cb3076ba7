"""Connections of HTTP/1.1."""
