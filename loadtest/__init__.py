"""Load tests and benchmarks: the server next to bare programs that do only the necessary."""
