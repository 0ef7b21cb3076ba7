"""Write the rows of a query to topics, each row once."""
