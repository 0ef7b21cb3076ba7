"""Clients: the load generator, and clients that measure delivery and queues."""
