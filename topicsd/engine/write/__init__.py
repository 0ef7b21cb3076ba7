"""Append records: checks, seqs, frames, idempotency keys, producers."""
