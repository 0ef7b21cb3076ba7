"""Reading in the tasks of a query: from a range of a topic to batches of Arrow."""
