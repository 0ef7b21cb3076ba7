"""Endpoints of watch sessions."""
