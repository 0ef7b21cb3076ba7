"""Keys by request, and the audit log."""
