"""The disk: the seam that all calls go through, the names in a data directory, and safe replacement."""
