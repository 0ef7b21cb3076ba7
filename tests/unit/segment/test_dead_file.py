from __future__ import annotations

from random import Random

import pytest
import xxhash

from topicsd.log.file_header import UnknownVersion
from topicsd.segment.dead_file import (
    DeadDamage,
    dead_bytes,
    decode_dead,
    encode_dead,
    pack_marks,
    unpack_marks,
)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 1000])
def test_a_dead_set_comes_back_as_it_was(count: int) -> None:
    rng = Random(count)
    for share in (0.0, 0.3, 1.0):
        marks = bytearray(rng.random() < share for _ in range(count))
        bitmap = pack_marks(marks)
        data = encode_dead(50, count, bitmap, complete_to=77)
        assert len(data) == dead_bytes(count)
        dead = decode_dead(data, 50, count)
        assert (bytes(dead.bitmap), dead.dead_count, dead.complete_to) == (bitmap, sum(marks), 77)
        assert unpack_marks(dead.bitmap, count) == marks
        for at in range(count):
            assert bool(dead.bitmap[at >> 3] >> (at & 7) & 1) == bool(marks[at])


def test_marks_of_no_record_are_no_bytes() -> None:
    assert pack_marks(b"") == b""
    assert unpack_marks(b"", 0) == b""
    assert pack_marks(b"\xff\x02\0") == b"\x03"


def test_any_byte_changed_cut_or_added_is_damage() -> None:
    data = encode_dead(50, 20, b"\x05\x00\x03", complete_to=1)
    for offset in range(len(data)):
        for mask in (0x01, 0x80):
            changed = bytearray(data)
            changed[offset] ^= mask
            with pytest.raises(DeadDamage):
                decode_dead(bytes(changed), 50, 20)
        with pytest.raises(DeadDamage):
            decode_dead(data[:offset], 50, 20)
    with pytest.raises(DeadDamage):
        decode_dead(data + b"\0", 50, 20)


def test_the_dead_set_of_another_segment_is_damage() -> None:
    data = encode_dead(50, 20, b"\x05\x00\x03", complete_to=1)
    with pytest.raises(DeadDamage, match="20 records from seq 50"):
        decode_dead(data, 51, 20)


def test_a_set_may_be_of_more_or_of_fewer_records_than_are_asked_for() -> None:
    data = encode_dead(50, 20, b"\x05\x00\x03", complete_to=1)
    assert decode_dead(data, 50, 0) == (bytearray(), 0, 1)
    assert decode_dead(data, 50, 16) == (bytearray(b"\x05\x00"), 2, 1)
    assert decode_dead(data, 50, 17) == (bytearray(b"\x05\x00\x01"), 3, 1)
    assert decode_dead(data, 50, 30) == (bytearray(b"\x05\x00\x03\x00"), 4, 1)


def with_checksum(body: bytes) -> bytes:
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")


def test_another_version_is_refused_and_a_wrong_count_is_damage() -> None:
    body = encode_dead(50, 20, b"\x05\x00\x03", complete_to=1)[:-8]
    with pytest.raises(UnknownVersion, match="version 2"):
        decode_dead(with_checksum(body[:8] + b"\2" + body[9:]), 50, 20)
    with pytest.raises(DeadDamage, match="unknown magic"):
        decode_dead(with_checksum(b"TOPICTAG" + body[8:]), 50, 20)
    with pytest.raises(DeadDamage, match="does not have the 5 dead"):
        decode_dead(with_checksum(body[:24] + b"\5" + body[25:]), 50, 20)
