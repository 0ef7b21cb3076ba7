"""Load: the generator, and clients that measure."""
