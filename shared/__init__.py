"""What at least two processes of the server use, and nothing else. It knows none of them."""
