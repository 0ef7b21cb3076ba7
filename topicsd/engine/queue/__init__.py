"""Jobs of a queue: which are ready, who holds which, and what ends them."""
