"""Modules that at least two processes of the server use. They import no process."""
