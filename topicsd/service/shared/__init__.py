"""Requests for shared topics, in a broker, and the way of a worker to it."""
