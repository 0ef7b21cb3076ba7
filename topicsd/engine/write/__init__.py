"""Writes: checks, seqs, frames, idempotency keys and producers of appended records."""
