"""The benchmark of what moves topics: the object store, the catalog, backups, reshards."""
