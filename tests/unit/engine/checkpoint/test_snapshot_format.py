from __future__ import annotations

import struct

import msgspec
import pytest
import xxhash

from tests.unit.checkpoint.sample import EMPTY, ORDERS, bytes_of, head_of, parts_of, sample
from topicsd.engine.checkpoint.snapshot_format import (
    SNAPSHOT_HEADER_BYTES,
    VERSION,
    Snapshot,
    SnapshotDamage,
    SnapshotTopic,
    decode_snapshot,
    encode_topic,
    snapshot_parts,
)
from topicsd.log.file_header import UnknownVersion


def sealed(version: int, body: bytes) -> bytes:
    """A file whose checksum fits, whatever is in it."""
    opening = struct.pack("<8sIQ", b"TOPICSNP", version, len(body))
    return opening + struct.pack("<Q", xxhash.xxh3_64_intdigest(opening + body)) + body


def test_what_goes_in_comes_out() -> None:
    assert decode_snapshot(bytes_of(sample())) == sample()


def test_a_shard_without_topics_and_keys_has_a_snapshot_too() -> None:
    empty = Snapshot(head_of(topic_count=0), [], [])
    assert decode_snapshot(bytes_of(empty)) == empty


def test_a_topic_is_in_the_file_as_it_was_encoded_and_is_not_copied() -> None:
    encoded = encode_topic(EMPTY)
    parts = snapshot_parts(head_of(topic_count=1), [encoded], [])
    assert any(part is encoded for part in parts)


@pytest.mark.slow
def test_many_topics_are_counted_in_more_than_16_bits() -> None:
    many = Snapshot(head_of(topic_count=70_000), [EMPTY] * 70_000, [])
    encoded = encode_topic(EMPTY)
    data = b"".join(snapshot_parts(many.head, [encoded] * 70_000, []))
    assert decode_snapshot(data) == many


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_changed_byte_is_damage_wherever_it_is(mask: int) -> None:
    data = bytes_of(sample())
    for offset in range(len(data)):
        changed = bytearray(data)
        changed[offset] ^= mask
        with pytest.raises(SnapshotDamage):
            decode_snapshot(bytes(changed))


def test_a_file_that_was_cut_is_damage_wherever_it_was_cut() -> None:
    data = bytes_of(sample())
    for size in range(len(data)):
        with pytest.raises(SnapshotDamage):
            decode_snapshot(data[:size])


def test_bytes_behind_the_end_are_damage() -> None:
    with pytest.raises(SnapshotDamage, match="after its header"):
        decode_snapshot(bytes_of(sample()) + b"\0")


def test_the_damage_is_named() -> None:
    data = bytes_of(sample())
    for wrong, said in [
        (b"", "ends after 0 bytes"),
        (b"x" + data[1:], "magic"),
        (data[:-1], "declares"),
        (data[:-1] + b"x", "checksum"),
        (sealed(VERSION, b"\x93"), "cannot be decoded"),
        (sealed(VERSION, b"\xc0" + b"\x00" * 8), "cannot be decoded"),
    ]:
        with pytest.raises(SnapshotDamage, match=said):
            decode_snapshot(wrong)


def test_a_topic_that_is_missing_is_noticed_though_the_checksum_fits() -> None:
    parts = parts_of(sample())
    body = parts[1].replace(b"\xdd\x00\x00\x00\x02", b"\xdd\x00\x00\x00\x01") + b"".join(
        [parts[2], *parts[4:]]
    )
    with pytest.raises(SnapshotDamage, match="1 of 2 topics"):
        decode_snapshot(sealed(VERSION, body))


def test_a_newer_version_is_refused_and_a_damaged_one_is_damage() -> None:
    body = bytes_of(sample())[SNAPSHOT_HEADER_BYTES:]
    with pytest.raises(UnknownVersion, match="version 2; this program reads version 1"):
        decode_snapshot(sealed(VERSION + 1, b"whatever a newer program puts there"))
    assert decode_snapshot(sealed(VERSION, body)) == sample()
    damaged = bytearray(sealed(VERSION, body))
    damaged[8] = VERSION + 1
    with pytest.raises(SnapshotDamage):
        decode_snapshot(bytes(damaged))


def test_a_field_that_came_later_is_passed_over_and_one_that_is_missing_gets_its_default() -> None:
    fields = list(msgspec.structs.astuple(ORDERS))
    config = msgspec.structs.asdict(ORDERS.config)
    fields[3] = {**config, "colour": "green"}
    fields[14] = [[*msgspec.structs.astuple(one), "later"] for one in ORDERS.segments]
    later = msgspec.msgpack.encode([*fields, "later"])
    assert msgspec.msgpack.decode(later, type=SnapshotTopic) == ORDERS
    earlier = msgspec.msgpack.encode(fields[:-1])
    assert msgspec.msgpack.decode(earlier, type=SnapshotTopic) == msgspec.structs.replace(ORDERS, sections={})


def test_a_head_that_does_not_fit_its_topics_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        snapshot_parts(head_of(topic_count=3), [encode_topic(EMPTY)], [])
