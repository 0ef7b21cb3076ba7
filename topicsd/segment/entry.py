"""What is known of one segment without opening its files, and how its files are named in a store.

Snapshot and manifest say a `SegmentEntry` of each segment; recovery, reads and retention go by it, so that a
restart opens no segment. A field is only ever added at the end, with a default that means what entries
without it meant.
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
    first_seq: int
    count: int
    generation: int
    data_bytes: int
    """The length of .data that counts; what stands behind it was never taken over."""
    first_ts: int
    last_ts: int
    is_sealed: bool
    has_tags: bool
    """There is a .tags file; only a sealed segment has one."""
    tier: str
    live_count: int
    """Records that are neither deleted nor trimmed."""
    live_bytes: int
    dead_count: int
    """Bits set in .del; with 0 there is no .del."""
    since_ordinal: int
    """No frame of the segment has a lower ordinal in the shard's log."""

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class SegmentName(NamedTuple):
    topic_id: int
    epoch: int
    first_seq: int
    generation: int

    def key(self, suffix: str) -> str:
        """The name of one of the segment's files in a store.

        >>> SegmentName(7, 1024, 10001, 2).key(INDEX)
        'topics/0000000000000007-1024/seg-0000000000010001-2.idx'
        """
        stem = segment_stem(self.first_seq, self.generation)
        return f"topics/{topic_dir_name(self.topic_id, self.epoch)}/{stem}{suffix}"


class SegmentDamage(Exception):
    """The records from `first_seq` to `last_seq` of a segment cannot be had as they were written."""

    def __init__(self, name: SegmentName, first_seq: int, last_seq: int, what: str) -> None:
        super().__init__(f"{name.key(DATA)}, seqs {first_seq} to {last_seq}: {what}")
        self.name = name
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.what = what
