"""Example programs for users to copy."""
