"""Several nodes, one object store and one catalog on one virtual clock, with their histories."""
