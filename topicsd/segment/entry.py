"""The description of one segment that needs no open file, and the names of its files in a store.

Snapshot and manifest hold a `SegmentEntry` for each segment; recovery, reads and retention use it, so that a
restart opens no segment. New fields are added only at the end, with a default that keeps the meaning of
entries without the field.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from topicsd.disk.layout import segment_stem, topic_dir_name

HOT = "hot"
COLD = "cold"
# Where .data is, and with it what a read costs:
#   hot   without a stem   only in the data directory
#   hot   with a stem      in the data directory and in the object store
#   cold  with a stem      only in the object store
#   cold  without a stem   moved by an earlier version, below `shards/NN` in the folder of a `file:` store
# The other files of a segment are in the data directory in all cases but the last one.

DATA = ".data"
INDEX = ".idx"
TAGS = ".tags"
DEAD = ".del"
SUFFIXES = (DATA, INDEX, TAGS, DEAD)
OBJECT_SUFFIXES = (DATA, INDEX, TAGS)
STATE = ".state"
"""The suffix of a state object (`engine/ownership/state_object.py`), whose key has the form of the others."""
OBJECTS = "segments"
"""The folder of the objects of segments in a store."""

_OBJECT_STEM = re.compile(
    rf"{OBJECTS}/([0-9a-f]{{16}})-(\d+)/\d+-seg-(\d{{16}})(?:-(\d+))?-[0-9a-f]{{8}}", re.ASCII
)


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
    object_stem: str = ""
    """The key without suffix of the objects that hold .data, .idx and .tags; empty: not exported."""

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

    def object_stem(self, owner_epoch: int, token: str) -> str:
        """Return the key of the segment's objects without suffix.

        The token is random, so no key is ever written twice with different content.

        >>> SegmentName(7, 1024, 10001, 2).object_stem(1, "5f9a01c2")
        'segments/0000000000000007-1024/1-seg-0000000000010001-2-5f9a01c2'
        """
        stem = segment_stem(self.first_seq, self.generation)
        topic = topic_dir_name(self.topic_id, self.epoch)
        return f"{OBJECTS}/{topic}/{owner_epoch}-{stem}-{token}"

    @classmethod
    def of_object_stem(cls, stem: str) -> SegmentName | None:
        """Return the segment whose objects have this stem; None for other objects.

        >>> SegmentName.of_object_stem("segments/0000000000000007-1024/1-seg-0000000000010001-2-5f9a01c2")
        SegmentName(topic_id=7, epoch=1024, first_seq=10001, generation=2)
        """
        match = _OBJECT_STEM.fullmatch(stem)
        if match is None:
            return None
        return cls(int(match[1], 16), int(match[2]), int(match[3]), int(match[4] or 0))


def parse_object_stem(stem: str) -> tuple[int, int, int]:
    """Return topic id, epoch and first seq of the stem of a segment's objects; seq 0 of a state object.

    >>> parse_object_stem("segments/0000000000000007-1024/1-seg-0000000000010001-2-5f9a01c2")
    (7, 1024, 10001)
    """
    _, folder, name = stem.split("/")
    topic_id, epoch = folder.split("-")
    parts = name.split("-")
    return int(topic_id, 16), int(epoch), int(parts[2]) if parts[1] == "seg" else 0


class DroppedSegment(msgspec.Struct, frozen=True, array_like=True):
    """A segment whose files and objects are not needed once no kept snapshot names it."""

    name: SegmentName
    tier: str
    object_stem: str = ""

    @classmethod
    def of(cls, name: SegmentName, entry: SegmentEntry) -> DroppedSegment:
        return cls(name, entry.tier, entry.object_stem)


class SegmentDamage(Exception):
    """Damage to the records from `first_seq` to `last_seq` of a segment."""

    def __init__(self, name: SegmentName, first_seq: int, last_seq: int, what: str) -> None:
        super().__init__(f"{name.key(DATA)}, seqs {first_seq} to {last_seq}: {what}")
        self.name = name
        self.first_seq = first_seq
        self.last_seq = last_seq
        self.what = what
