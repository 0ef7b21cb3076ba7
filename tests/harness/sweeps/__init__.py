"""Scripts that run once for each call or byte that may fail."""
