"""Removal of records: eviction by age and by caps, and deletes."""
