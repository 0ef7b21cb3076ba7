"""A server or its processes, started as an operator starts them."""
