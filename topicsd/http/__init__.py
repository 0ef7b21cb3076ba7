"""How the worker speaks HTTP: a fast lane for plain requests and an application for the rest, on one set of
handlers."""
