"""Jobs of a queue: their states, their leases, and how they end."""
