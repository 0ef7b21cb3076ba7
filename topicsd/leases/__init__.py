"""Who holds which job of a queue, and who gets the next one."""
