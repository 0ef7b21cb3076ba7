"""Commands for the object store of a data directory."""
