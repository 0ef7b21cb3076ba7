"""A load on a cluster of nodes that share a store and a catalog: `python -m loadtest cluster`."""
