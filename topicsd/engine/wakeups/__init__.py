"""Wakeups: which waiters of changed topics are called next, and the pressure on the shard."""
