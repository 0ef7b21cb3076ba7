"""The processes of a run: object store, catalog, nodes, Prometheus."""
