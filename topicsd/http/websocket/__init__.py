"""Connections that are a WebSocket."""
