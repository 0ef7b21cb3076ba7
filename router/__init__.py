"""The supervisor: accepts connections, places them and supervises the workers. It handles no records."""
