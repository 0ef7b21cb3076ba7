"""Background upkeep of sealed segments: scrub, tiering and compaction."""
