"""The topics as a reader has them at one moment, from the files or from a server."""
