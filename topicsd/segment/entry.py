"""The description of one segment that needs no open file, and the names of its files in a store.

Snapshot and manifest hold a `SegmentEntry` for each segment; recovery, reads and retention use it, so that a
restart opens no segment. New fields are added only at the end, with a default that keeps the meaning of
entries without the field.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from topicsd.disk.layout import segment_stem, topic_dir_name

HOT = "hot"
COLD = "cold"

DATA = ".data"
INDEX = ".idx"
TAGS = ".tags"
DEAD = ".del"
SUFFIXES = (DATA, INDEX, TAGS, DEAD)


class SegmentEntry(msgspec.Struct, frozen=True, array_like=True):
    """One segment as snapshot and manifest describe it."""

    first_seq: int
    count: int
    generation: int
    data_bytes: int
    """Valid length of .data; bytes after it were never named by a snapshot."""
    first_ts: int
    last_ts: int
    is_sealed: bool
    has_tags: bool
    """Whether the segment has a .tags file; only a sealed segment can have one."""
    tier: str
    live_count: int
    """Number of records that are neither deleted nor evicted."""
    live_bytes: int
    dead_count: int
    """Number of bits set in .del; with 0 the file does not exist."""
    since_ordinal: int
    """Lower bound of the ordinals that the segment's frames have in the shard's log."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class SegmentName(NamedTuple):
    """The identity of one segment, of which its files' names are made."""

    topic_id: int
    epoch: int
    first_seq: int
    generation: int

    def key(self, suffix: str) -> str:
        """Return the name of one of the segment's files in a store.

        >>> SegmentName(7, 1024, 10001, 2).key(INDEX)
        'topics/0000000000000007-1024/seg-0000000000010001-2.idx'
        """
        stem = segment_stem(self.first_seq, self.generation)
        return f"topics/{topic_dir_name(self.topic_id, self.epoch)}/{stem}{suffix}"


class SegmentDamage(Exception):
    """Damage to the records from `first_seq` to `last_seq` of a segment."""

    def __init__(self, name: SegmentName, first_seq: int, last_seq: int, what: str) -> None:
        super().__init__(f"{name.key(DATA)}, seqs {first_seq} to {last_seq}: {what}")
        self.name = name
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.what = what
