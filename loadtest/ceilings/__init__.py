"""Bare programs that do only what a line of the benchmark cannot do without.

Each is a program of its own (`python -m loadtest.ceilings.NAME --port-file FILE`) that listens on a free port
of 127.0.0.1 and ends at SIGTERM. No limits, no keys, no error handling: a request that is not the one it was
made for may do anything.
"""
