"""The engines of catalogs: connections, transactions, schemas and errors of each, without a verb."""
