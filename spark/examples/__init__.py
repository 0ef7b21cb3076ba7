"""Programs for users to copy."""
