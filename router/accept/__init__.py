"""Accept connections and place each at the process that answers it."""
