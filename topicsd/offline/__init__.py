"""Reading a data directory without being its server, and repairing it when no server runs."""
