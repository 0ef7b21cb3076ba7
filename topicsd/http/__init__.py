"""The HTTP connections of a worker (HTTP/1.1, HTTP/2, WebSocket), with one set of handlers."""
