"""Where the records of a topic are: runs of seqs in the tail, an active segment or sealed segments."""
