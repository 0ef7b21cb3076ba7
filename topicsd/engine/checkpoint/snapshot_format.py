"""The snapshot format: everything a shard knows except its records, in one checksummed file.

The header is that of `checked_document.py`, with the magic b"TOPICSNP" and version 1. The body::

    msgpack: [head, [topic, ...], [key generation, ...]]

The body is one msgpack document, so that one typed decoder reads all of it in one call, however many topics
there are. It is written in parts: the checkpoint encodes each topic on its own, so no step handles more than
one topic or one generation of keys.

    >>> place = LogPlace(file=1, offset=142, ordinal=3, chain=5)
    >>> head = SnapshotHead(instance=b"i" * 16, shard=0, number=7, start=place, end_ordinal=3, end_file=1,
    ...                     end_offset=142, created_ms=0, topic_count=0)
    >>> data = b"".join(snapshot_parts(head, [], []))
    >>> data[:20].hex(" ", 4), data[28:32].hex(" ")
    ('544f5049 43534e50 01000000 2d000000 00000000', '93 9a c4 10')
    >>> decode_snapshot(data).head == head
    True

Changes of the format: add a field at the end of its struct, with a default that keeps the meaning of
snapshots without it. For any other change raise VERSION, keep reading earlier versions, and add a golden file
of the new one to `tests/golden/`. A file of a newer version is refused.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from shared.contract.topic_config import TopicConfig
from topicsd.engine.checkpoint.checked_document import (
    DOCUMENT_HEADER_BYTES,
    DocumentDamage,
    body_of,
    document_parts,
)
from topicsd.log.files import LogPlace
from topicsd.segment.entry import SegmentEntry

MAGIC = b"TOPICSNP"
VERSION = 1

TOPIC_SECTIONS = frozenset(("producers", "cursors", "queue", "forwards", "ownership", "schedules"))
"""Sections that parts of the server add to a topic."""
EPOCH_FLOOR = "epoch_floor"
"""The section with the highest epoch that is no ordinal of the shard's log."""
HEAD_SECTIONS = frozenset(("watch_sessions", "leaving", "objects", EPOCH_FLOOR, "departed", "to_forget"))
"""Sections that parts of the server add to the shard."""

SNAPSHOT_HEADER_BYTES = DOCUMENT_HEADER_BYTES

_ARRAY_OF_3 = b"\x93"
_ARRAY_32 = struct.Struct(">BI")


# `gc=False`: the structs are plain data without cycles, and with 100,000 topics the passes of the garbage
# collector are half of the decoding time.


class SnapshotDamage(DocumentDamage):
    """These bytes are not a whole snapshot; the message says why."""


class SnapshotTopic(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One topic, as in `engine/topic.py`."""

    name: str
    topic_id: int
    epoch: int
    config: TopicConfig
    complete_to: int
    """The frames of this topic with a lower ordinal are included."""
    head: int
    ceiling: int
    earliest_seq: int
    evict_floor: int
    evicted_to: dict[str, int]
    ttl_logged: int
    lost: list[tuple[int, int, str]]
    last_ts: int
    windows_ms: list[int]
    segments: list[SegmentEntry]
    sections: dict[str, bytes] = {}
    """State that parts of the server add to the topic, by the names in TOPIC_SECTIONS."""


class KeyGeneration(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Idempotency keys of a tenth of a window, or some of them, as columns.

    Entry i of each column belongs to the same key. If the keys are split, the others follow directly.
    """

    window_ms: int
    number: int
    digests: bytes
    records: bytes
    first_seqs: bytes
    counts: bytes
    used_ms: bytes
    topic_ids: bytes = b""
    """The id of each key's topic; empty in snapshots from before this column."""


class SnapshotHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a snapshot says about itself and its shard."""

    instance: bytes
    shard: int
    number: int
    start: LogPlace
    """P: replay begins here."""
    end_ordinal: int
    """E: the capture ended here. The log was synced at least to here before the snapshot had its name."""
    end_file: int
    end_offset: int
    created_ms: int
    topic_count: int
    sections: dict[str, bytes] = {}


def epoch_floor_section(epoch_floor: int) -> dict[str, bytes]:
    return {EPOCH_FLOOR: msgspec.msgpack.encode(epoch_floor)} if epoch_floor else {}


def epoch_floor_of(head: SnapshotHead) -> int:
    section = head.sections.get(EPOCH_FLOOR)
    return 0 if section is None else msgspec.msgpack.decode(section, type=int)


class Snapshot(NamedTuple):
    """A decoded snapshot."""

    head: SnapshotHead
    topics: list[SnapshotTopic]
    keys: list[KeyGeneration]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Snapshot)


def encode_topic(entry: SnapshotTopic) -> bytes:
    assert TOPIC_SECTIONS.issuperset(entry.sections), entry.sections
    return _encoder.encode(entry)


def encode_keys(generation: KeyGeneration) -> bytes:
    return _encoder.encode(generation)


def snapshot_parts(head: SnapshotHead, topics: list[bytes], keys: list[bytes]) -> list[bytes]:
    """Return the whole file as a list of parts, with the encoded topics and keys uncopied."""
    assert len(head.instance) == 16
    assert HEAD_SECTIONS.issuperset(head.sections), head.sections
    assert head.topic_count == len(topics)
    assert head.start.ordinal <= head.end_ordinal
    body = [
        _ARRAY_OF_3 + _encoder.encode(head) + _ARRAY_32.pack(0xDD, len(topics)),
        *topics,
        _ARRAY_32.pack(0xDD, len(keys)),
        *keys,
    ]
    return document_parts(MAGIC, VERSION, body)


def decode_snapshot(data: bytes) -> Snapshot:
    """Decode a snapshot; raise SnapshotDamage, or UnknownVersion for a whole one that is newer."""
    body = body_of(data, MAGIC, VERSION, "snapshot", SnapshotDamage)
    try:
        snapshot = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # The checksum matches, so this is a bug of the writer, not a damaged disk.
        raise SnapshotDamage(f"its body cannot be decoded: {error}") from None
    if snapshot.head.topic_count != len(snapshot.topics):
        raise SnapshotDamage(f"it holds {len(snapshot.topics)} of {snapshot.head.topic_count} topics")
    return snapshot
