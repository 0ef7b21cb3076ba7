"""The broker: writes and reads of shared topics, which have no owner."""
