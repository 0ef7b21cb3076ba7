"""Clients, one for each protocol, and crowds of them."""
