"""Terms of the HTTP contract that several processes use: endpoints, errors, names, keys."""
