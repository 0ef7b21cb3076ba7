"""HTTP/1.1 as bytes: heads, bodies, error responses, and the minimum speed of clients."""
