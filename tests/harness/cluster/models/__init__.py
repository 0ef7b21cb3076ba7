"""A model of a node, and models that break one rule each."""
