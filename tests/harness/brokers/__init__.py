"""Several brokers, one store and one catalog on virtual time, and the judge of their histories."""
