"""The read path of a broker: tail cache, extents, waits at the tail."""
