"""Background care of sealed segments: scrub, tiering, compaction."""
