"""The clients of a run: routing, requests, and the check of what was read."""
