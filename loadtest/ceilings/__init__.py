"""Bare programs that do only the necessary work of one benchmark line.

Each is a program of its own (`python -m loadtest.ceilings.NAME --port-file FILE`) that listens on a free port
of 127.0.0.1 and ends at SIGTERM. It has no limits, no keys and no error handling: its behaviour is undefined
for requests other than those of its line.
"""
