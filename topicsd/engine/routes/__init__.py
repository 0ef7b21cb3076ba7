"""Routes, which copy records from one topic to another: their rules, their state, and the copies."""
