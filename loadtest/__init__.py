"""Load and benchmarks: what the log can do, beside a bare program that does only what it must."""
