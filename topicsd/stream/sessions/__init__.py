"""Watch sessions: create, open, resume."""
