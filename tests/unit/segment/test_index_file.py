from __future__ import annotations

from array import array
from itertools import accumulate
from random import Random
from typing import TypeAlias

import pytest
import xxhash

from topicsd.log.file_header import UnknownVersion
from topicsd.segment.data_file import SEGMENT_HEADER_BYTES
from topicsd.segment.index_file import (
    ENTRY_BYTES,
    FOOTER_BYTES,
    IndexDamage,
    SegmentIndex,
    decode_index,
    encode_entries,
    encode_footer,
)

Columns: TypeAlias = "tuple[array[int], array[int], array[int], bytes]"


def columns(count: int, seed: int = 0) -> Columns:
    rng = Random(seed)
    lengths = array("I", [rng.choice((0, 54, rng.randrange(54, 5000))) for _ in range(count)])
    offsets = array("I", [*accumulate(lengths, initial=SEGMENT_HEADER_BYTES)][:count])
    times_ms = array("Q", sorted(rng.randrange(1 << 48) for _ in range(count)))
    return offsets, lengths, times_ms, bytes(rng.randrange(16) for _ in range(count))


def columns_of(index: SegmentIndex) -> Columns:
    return index.offsets, index.lengths, index.times_ms, bytes(index.flags)


@pytest.mark.parametrize("count", [0, 1, 2, 999])
@pytest.mark.parametrize("sealed", [True, False])
def test_an_index_comes_back_as_it_was(count: int, sealed: bool) -> None:
    written = columns(count)
    data = encode_entries(*written)
    assert len(data) == count * ENTRY_BYTES
    index = decode_index(data + encode_footer(data) if sealed else data, 7, count, sealed)
    assert columns_of(index) == written
    assert (index.first_seq, index.count) == (7, count)
    assert index.data_end == SEGMENT_HEADER_BYTES + sum(written[1])
    for at in range(count):
        assert index.place_of(7 + at) == (written[0][at], written[1][at])


def test_entries_encoded_in_parts_equal_those_encoded_at_once() -> None:
    written = columns(100)
    parts = [encode_entries(*(column[at : at + 7] for column in written)) for at in range(0, 100, 7)]  # type: ignore[arg-type]
    assert b"".join(parts) == encode_entries(*written)


def test_what_stands_behind_the_entries_of_an_active_file_does_not_count() -> None:
    written = columns(10)
    data = encode_entries(*written)
    assert columns_of(decode_index(data + b"garbage", 1, 10, sealed=False)) == written
    assert decode_index(data, 1, 4, sealed=False).times_ms == written[2][:4]
    with pytest.raises(IndexDamage, match="199 bytes, but 10 entries need 200"):
        decode_index(data[:-1], 1, 10, sealed=False)


def test_any_byte_changed_cut_or_added_is_damage() -> None:
    entries = encode_entries(*columns(8))
    data = entries + encode_footer(entries)
    assert len(data) == len(entries) + FOOTER_BYTES
    for offset in range(len(data)):
        for mask in (0x01, 0x80):
            changed = bytearray(data)
            changed[offset] ^= mask
            with pytest.raises(IndexDamage):
                decode_index(bytes(changed), 1, 8, sealed=True)
        with pytest.raises(IndexDamage):
            decode_index(data[:offset], 1, 8, sealed=True)
    with pytest.raises(IndexDamage):
        decode_index(data + b"\0", 1, 8, sealed=True)
    with pytest.raises(IndexDamage):
        decode_index(data, 1, 7, sealed=True)


def test_a_changed_byte_of_an_active_index_never_gives_another_place() -> None:
    written = columns(8)
    data = encode_entries(*written)
    for offset in range(len(data)):
        for mask in (0x01, 0x10, 0x80):
            changed = bytearray(data)
            changed[offset] ^= mask
            try:
                index = decode_index(bytes(changed), 1, 8, sealed=False)
            except IndexDamage:
                continue
            assert columns_of(index)[0] == written[0]
            # The last length is what the length of .data is held against.
            assert index.lengths[:-1] == written[1][:-1]


def resealed(entries: bytes, magic: bytes = b"TOPICIDX", version: int = 1, count: int = 8) -> bytes:
    head = magic + version.to_bytes(4, "little") + count.to_bytes(4, "little")
    return entries + head + xxhash.xxh3_64_intdigest(entries + head).to_bytes(8, "little")


def test_another_version_is_refused_and_another_magic_or_count_is_damage() -> None:
    entries = encode_entries(*columns(8))
    assert resealed(entries) == entries + encode_footer(entries)
    with pytest.raises(UnknownVersion, match="version 2"):
        decode_index(resealed(entries, version=2), 1, 8, sealed=True)
    with pytest.raises(IndexDamage, match="unknown magic"):
        decode_index(resealed(entries, magic=b"TOPICTAG"), 1, 8, sealed=True)
    with pytest.raises(IndexDamage, match="9 entries instead of 8"):
        decode_index(resealed(entries, count=9), 1, 8, sealed=True)
