"""Accept connections and hand each to the process that answers it."""
