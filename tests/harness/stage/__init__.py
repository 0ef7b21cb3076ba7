"""Shards with the request handling of their workers, without sockets."""
