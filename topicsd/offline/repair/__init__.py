"""The repair of a data directory: the diagnosis, the plan, and its execution."""
