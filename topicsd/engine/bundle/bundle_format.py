"""The bundle format: all of one topic except its segment files, in one checksummed file.

The header is that of `checked_document.py`, with the magic b"TOPICBDL" and version 1. The body::

    msgpack: [topic, [segment marks, ...], [key generation, ...]]

`topic` is the snapshot entry of the topic, and names its segments. Rules of a bundle, which `check_bundle`
enforces:

B1  All segments are sealed: the bundle and the files that it names have every live record.
B2  The head is final. No seq above it was given out, so the topic continues at head + 1 elsewhere. The entry
    of an ephemeral topic has no records, and its ceiling is that head.
B3  Marks list each segment with a dead record, and no other.
B4  Ordinals are 0: they belong to the log of the shard that wrote the bundle.

Changes of the format: as in `snapshot_format.py`. The codec is part of the engine, as the snapshot entry is.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from shared.contract.names import topic_id
from topicsd.engine.checkpoint.checked_document import DocumentDamage, body_of, document_parts
from topicsd.engine.checkpoint.snapshot_format import TOPIC_SECTIONS, KeyGeneration, SnapshotTopic
from topicsd.segment.entry import SegmentEntry, SegmentName

MAGIC = b"TOPICBDL"
VERSION = 1


class BundleDamage(DocumentDamage):
    """These bytes are not a whole bundle; the message says why."""


class SegmentMarks(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The dead records of one segment, as in its `.del` file."""

    first_seq: int
    bitmap: bytes
    """Seq first_seq + i is bit i & 7 of byte i >> 3."""


class SealedPart(msgspec.Struct, frozen=True, array_like=True):
    """The sealed segments of a topic that is still in use, for a shard that will adopt it."""

    topic: str
    epoch: int
    segments: list[SegmentEntry]


class Bundle(NamedTuple):
    """All of one topic: its snapshot entry, its dead records and its idempotency keys."""

    topic: SnapshotTopic
    marks: list[SegmentMarks]
    keys: list[KeyGeneration]

    def name_of(self, entry: SegmentEntry) -> SegmentName:
        """Return the name of one of the bundle's segments."""
        return SegmentName(self.topic.topic_id, self.topic.epoch, entry.first_seq, entry.generation)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Bundle)


def encode_bundle(bundle: Bundle) -> bytes:
    """Encode a bundle with its ordinals set to 0 (B4)."""
    check_bundle(bundle)
    return b"".join(document_parts(MAGIC, VERSION, [_encoder.encode(without_ordinals(bundle))]))


def decode_bundle(data: bytes) -> Bundle:
    """Decode a bundle; raise BundleDamage, or UnknownVersion for a whole one that is newer."""
    body = body_of(data, MAGIC, VERSION, "bundle", BundleDamage)
    try:
        bundle = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BundleDamage(f"its body cannot be decoded: {error}") from None
    check_bundle(bundle)
    return bundle


def without_ordinals(bundle: Bundle) -> Bundle:
    """Return the bundle with all ordinals of its shard's log set to 0."""
    segments = [msgspec.structs.replace(entry, since_ordinal=0) for entry in bundle.topic.segments]
    return bundle._replace(topic=msgspec.structs.replace(bundle.topic, complete_to=0, segments=segments))


def check_bundle(bundle: Bundle) -> None:
    """Raise BundleDamage when the bundle breaks one of its rules."""
    topic = bundle.topic
    if topic.topic_id != topic_id(topic.name):
        raise BundleDamage("its id does not match its name")
    if not TOPIC_SECTIONS.issuperset(topic.sections):
        unknown = sorted(topic.sections.keys() - TOPIC_SECTIONS)
        raise BundleDamage(f"it has unknown sections: {', '.join(unknown)}")
    is_ephemeral = topic.config.durability == "ephemeral"
    if is_ephemeral and (topic.segments or topic.head):
        raise BundleDamage("its topic is ephemeral but has records")
    if not is_ephemeral and topic.ceiling > topic.head:
        raise BundleDamage(f"its ceiling {topic.ceiling} is above its head {topic.head}")
    before = 0
    for entry in topic.segments:
        if not entry.is_sealed:
            raise BundleDamage(f"its segment from seq {entry.first_seq} on is not sealed")
        if not before < entry.first_seq <= entry.last_seq <= topic.head:
            raise BundleDamage(
                f"its segment from seq {entry.first_seq} on overlaps another or ends above the head"
            )
        before = entry.last_seq
    dead = {entry.first_seq: entry for entry in topic.segments if entry.dead_count}
    if [one.first_seq for one in bundle.marks] != [*dead]:
        raise BundleDamage("its marks are not those of its segments with dead records")
    for marks in bundle.marks:
        entry = dead[marks.first_seq]
        number = int.from_bytes(marks.bitmap, "little")
        if (
            len(marks.bitmap) != (entry.count + 7) // 8
            or number >> entry.count
            or number.bit_count() != entry.dead_count
        ):
            raise BundleDamage(
                f"its marks of the segment from seq {entry.first_seq} on do not fit its counts"
            )
