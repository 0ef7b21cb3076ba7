"""Connections of HTTP/2."""
