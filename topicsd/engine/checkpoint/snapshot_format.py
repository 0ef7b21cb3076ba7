"""The snapshot format: everything a shard knows except its records, in one checksummed file.

::

    off  size  field
      0    8   magic     b"TOPICSNP"
      8    4   version   1
     12    8   length    of the body; the file ends with it
     20    8   checksum  xxh3_64 over bytes [0 .. 20) and the body
     28    N   body      msgpack: [head, [topic, ...], [key generation, ...]]

The body is one msgpack document, so that one typed decoder reads all of it in one call, however many topics
there are. It is written in parts: the checkpoint encodes each topic on its own, so no step handles more than
one topic or one generation of keys.

The first 28 bytes have the same layout in every version. This distinguishes a damaged version field from a
newer version: only in the second case does the checksum match.

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
import xxhash

from shared.contract.topic_config import TopicConfig
from topicsd.log.file_header import UnknownVersion
from topicsd.log.files import LogPlace
from topicsd.segment.entry import SegmentEntry

MAGIC = b"TOPICSNP"
VERSION = 1

TOPIC_SECTIONS = frozenset(("producers", "cursors", "queue", "forwards"))
"""Sections that parts of the server add to a topic."""
HEAD_SECTIONS = frozenset(("watch_sessions", "leaving"))
"""Sections that parts of the server add to the shard."""

_OPENING = struct.Struct("<8sIQ")
_CHECKSUM = struct.Struct("<Q")
SNAPSHOT_HEADER_BYTES = _OPENING.size + _CHECKSUM.size

_ARRAY_OF_3 = b"\x93"
_ARRAY_32 = struct.Struct(">BI")


# `gc=False`: the structs are plain data without cycles, and with 100,000 topics the passes of the garbage
# collector are half of the decoding time.


class SnapshotDamage(Exception):
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
    opening = _OPENING.pack(MAGIC, VERSION, sum(map(len, body)))
    checksum = xxhash.xxh3_64(opening)
    for part in body:
        checksum.update(part)
    return [opening + _CHECKSUM.pack(checksum.intdigest()), *body]


def decode_snapshot(data: bytes) -> Snapshot:
    """Decode a snapshot; raise SnapshotDamage, or UnknownVersion for a whole one that is newer."""
    if len(data) < SNAPSHOT_HEADER_BYTES:
        raise SnapshotDamage(f"it ends after {len(data)} bytes, within its header")
    magic, version, length = _OPENING.unpack_from(data)
    if magic != MAGIC:
        raise SnapshotDamage("it does not begin with the snapshot magic")
    body = memoryview(data)[SNAPSHOT_HEADER_BYTES:]
    if length != len(body):
        raise SnapshotDamage(f"it has {len(body)} bytes after its header, which declares {length}")
    checksum = xxhash.xxh3_64(data[: _OPENING.size])
    checksum.update(body)
    if _CHECKSUM.unpack_from(data, _OPENING.size)[0] != checksum.intdigest():
        raise SnapshotDamage("its checksum does not match")
    if version != VERSION:
        raise UnknownVersion(f"snapshot format version {version}; this program reads version {VERSION}")
    try:
        snapshot = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # The checksum matches, so this is a bug of the writer, not a damaged disk.
        raise SnapshotDamage(f"its body cannot be decoded: {error}") from None
    if snapshot.head.topic_count != len(snapshot.topics):
        raise SnapshotDamage(f"it holds {len(snapshot.topics)} of {snapshot.head.topic_count} topics")
    return snapshot
