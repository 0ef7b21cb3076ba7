"""The places of a topic's records: runs of seqs in the tail, an active segment or sealed segments."""
