"""Follow topics by names and patterns, also topics that do not exist yet."""
