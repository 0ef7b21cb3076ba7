"""Start, watch, restart and stop the processes of the server."""
