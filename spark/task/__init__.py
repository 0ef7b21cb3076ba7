"""What a task of a query does: read a stretch of a topic into batches of Arrow."""
