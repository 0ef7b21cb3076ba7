"""What brokers say about themselves and about their cluster."""
