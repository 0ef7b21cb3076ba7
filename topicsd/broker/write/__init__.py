"""The write path of a broker: groups of records, blobs, commits."""
