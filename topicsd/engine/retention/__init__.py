"""Remove records: by age, by caps, and by request."""
