"""The verbs of a catalog for shared topics, which have no owner."""
