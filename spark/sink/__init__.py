"""The write side of the data source: the rows of a query to topics, each row once."""
