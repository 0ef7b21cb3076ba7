"""Query limits: what a query needs, so that the source reads no more."""
