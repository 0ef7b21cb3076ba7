"""The supervisor: accepts and places connections, supervises workers, handles no records."""
