"""The read side of the data source: topics as the rows of a query, in batches or as a stream."""
