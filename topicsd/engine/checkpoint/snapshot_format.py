"""A snapshot: all that a shard knows but for its records, in one file that proves itself.

::

    off  size  field
      0    8   magic     b"TOPICSNP"
      8    4   version   1
     12    8   length    of the body; the file ends with it
     20    8   checksum  xxh3_64 over bytes [0 .. 20) and the body
     28    N   body      msgpack: [head, [topic, ...], [key generation, ...]]

The body is one msgpack document, so that one typed decoder reads all of it in one call, however many topics
there are. It is written as pieces: whoever captures the topics encodes each on its own, and nothing here
is a step of more than one topic or one generation of keys.

The first 28 bytes stay as they are in every version. So a version that is damaged is told from one that is
newer: only in the second case the checksum fits.

    >>> place = LogPlace(file=1, offset=142, ordinal=3, chain=5)
    >>> head = SnapshotHead(instance=b"i" * 16, shard=0, number=7, start=place, end_ordinal=3, end_file=1,
    ...                     end_offset=142, created_ms=0, topic_count=0)
    >>> data = b"".join(snapshot_pieces(head, [], []))
    >>> data[:20].hex(" ", 4), data[28:32].hex(" ")
    ('544f5049 43534e50 01000000 2d000000 00000000', '93 9a c4 10')
    >>> decode_snapshot(data).head == head
    True

How to change the format: a field is added at the end of its struct, with a default that means what snapshots
without it meant. For anything else raise VERSION, keep reading the versions before it, and add a golden file
of the new one to `tests/golden/`. A file of a newer version is refused, never guessed at.
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
"""The names of what parts of the server keep of a topic."""
HEAD_SECTIONS = frozenset(("watch_sessions", "leaving"))
"""The names of what they keep of the shard."""

_OPENING = struct.Struct("<8sIQ")
_CHECKSUM = struct.Struct("<Q")
SNAPSHOT_HEADER_BYTES = _OPENING.size + _CHECKSUM.size

_ARRAY_OF_3 = b"\x93"
_ARRAY_32 = struct.Struct(">BI")


# The structs are `gc=False`: they hold plain data, which has no cycles, and with 100,000 topics the passes of
# the collector are half of the time that decoding takes.


class SnapshotDamage(Exception):
    """These bytes are no whole snapshot; says what of them is wrong."""


class TopicEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One topic, as `engine/topic.py` knows it."""

    name: str
    topic_id: int
    epoch: int
    config: TopicConfig
    complete_to: int
    """The frames of this topic with a lower ordinal are in here."""
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
    """What parts of the server keep of the topic, by the names in TOPIC_SECTIONS."""


class KeyGeneration(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Idempotency keys of a tenth of a window, or a part of them with the next behind it, as columns: entry i
    of each is of the same key."""

    window_ms: int
    number: int
    digests: bytes
    records: bytes
    first_seqs: bytes
    counts: bytes
    used_ms: bytes


class SnapshotHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    instance: bytes
    shard: int
    number: int
    start: LogPlace
    """P: replay begins here."""
    end_ordinal: int
    """E: the capture was over here. The log was synced to at least this before the snapshot had a name."""
    end_file: int
    end_offset: int
    created_ms: int
    topic_count: int
    sections: dict[str, bytes] = {}


class Snapshot(NamedTuple):
    head: SnapshotHead
    topics: list[TopicEntry]
    keys: list[KeyGeneration]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Snapshot)


def encode_topic(entry: TopicEntry) -> bytes:
    assert TOPIC_SECTIONS.issuperset(entry.sections), entry.sections
    return _encoder.encode(entry)


def encode_keys(generation: KeyGeneration) -> bytes:
    return _encoder.encode(generation)


def snapshot_pieces(head: SnapshotHead, topics: list[bytes], keys: list[bytes]) -> list[bytes]:
    """The whole file as a list, in order; what `encode_topic` and `encode_keys` gave is in it uncopied."""
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
    for piece in body:
        checksum.update(piece)
    return [opening + _CHECKSUM.pack(checksum.intdigest()), *body]


def decode_snapshot(data: bytes) -> Snapshot:
    """All of a snapshot, or SnapshotDamage; UnknownVersion when it is whole and of a newer program."""
    if len(data) < SNAPSHOT_HEADER_BYTES:
        raise SnapshotDamage(f"it ends after {len(data)} bytes, within its header")
    magic, version, length = _OPENING.unpack_from(data)
    if magic != MAGIC:
        raise SnapshotDamage("it does not begin with the magic of a snapshot")
    body = memoryview(data)[SNAPSHOT_HEADER_BYTES:]
    if length != len(body):
        raise SnapshotDamage(f"it has {len(body)} bytes behind its header, which says {length}")
    checksum = xxhash.xxh3_64(data[: _OPENING.size])
    checksum.update(body)
    if _CHECKSUM.unpack_from(data, _OPENING.size)[0] != checksum.intdigest():
        raise SnapshotDamage("its checksum does not match")
    if version != VERSION:
        raise UnknownVersion(f"snapshot format version {version}; this program reads version {VERSION}")
    try:
        snapshot = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # The checksum fits, so this is no bit rot but a mistake of whoever wrote it.
        raise SnapshotDamage(f"its body cannot be understood: {error}") from None
    if snapshot.head.topic_count != len(snapshot.topics):
        raise SnapshotDamage(f"it names {len(snapshot.topics)} topics of {snapshot.head.topic_count}")
    return snapshot
