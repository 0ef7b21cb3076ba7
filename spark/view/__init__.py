"""The topics at one moment as a reader sees them, from the files or from a server."""
