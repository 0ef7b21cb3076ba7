from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
import xxhash

from topicsd.log.file_header import UnknownVersion
from topicsd.segment.tags_file import BLOCK_BYTES, FOOTER_BYTES, TagsDamage, TagsReader, encode_tags, tags_of

FIRST = 1000
Pairs = dict[bytes, list[int]]


class CountingRead:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.calls = 0
        self.bytes_read = 0

    def __call__(self, offset: int, size: int) -> bytes:
        self.calls += 1
        self.bytes_read += size
        return self.data[offset : offset + size]


def reader_of(data: bytes) -> TagsReader:
    return TagsReader(CountingRead(data), len(data))


def expected(pairs: Pairs, tag: bytes, is_prefix: bool, below: int) -> list[int]:
    return sorted(
        seq
        for one, seqs in pairs.items()
        if (one.startswith(tag) if is_prefix else one == tag)
        for seq in seqs
        if seq < below
    )


def random_pairs(rng: Random, count: int) -> Pairs:
    kind = rng.choice(("few", "unique", "nested", "bytes", "long"))

    def tag() -> bytes:
        if kind == "few":
            return f"tag-{rng.randrange(5)}".encode()
        if kind == "unique":
            return f"order/{rng.randrange(10**6):06d}".encode()
        if kind == "nested":
            return b"a" * rng.randrange(1, 60)
        if kind == "bytes":
            return rng.randbytes(rng.randrange(1, 4))
        return b"same beginning" * rng.randrange(1, 40) + rng.randbytes(2)

    return tags_of((FIRST + at, tag()) for at in range(count))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15))
def test_a_lookup_is_what_a_search_through_all_of_them_finds(seed: int) -> None:
    rng = Random(seed)
    pairs = random_pairs(rng, rng.choice((1, 10, 300, 1500)))
    data = encode_tags(pairs, FIRST)
    reader = reader_of(data)
    assert dict(reader.all_seqs()) == pairs
    assert (reader.first_seq, reader.tag_count) == (FIRST, len(pairs))
    assert reader.seq_count == sum(map(len, pairs.values()))
    tags = rng.sample(sorted(pairs), min(20, len(pairs)))
    queries = [*tags, *(tag[: rng.randrange(len(tag) + 1)] for tag in tags), *(tag + b"\0" for tag in tags)]
    queries += [b"", b"\0", b"\xff\xff\xff", rng.randbytes(3)]
    for tag in queries:
        for is_prefix in (False, True):
            for below in (FIRST + 1 << 20, FIRST + rng.randrange(1600), FIRST):
                assert reader.find(tag, is_prefix, below) == expected(pairs, tag, is_prefix, below)


def test_no_tags_are_a_file_too() -> None:
    reader = reader_of(encode_tags({}, FIRST))
    assert reader.find(b"", True, 1 << 60) == []
    assert reader.find(b"a", False, 1 << 60) == []


def test_tags_of_the_largest_size_and_one_on_every_record_are_found() -> None:
    pairs: Pairs = {b"on all": list(range(FIRST, FIRST + 10_000))}
    large = [b"x" * 65_534 + bytes((last,)) for last in range(5)]
    for at, tag in enumerate(large):
        pairs[tag] = [FIRST + at]
    data = encode_tags(pairs, FIRST)
    reader = reader_of(data)
    assert reader.find(b"on all", False, FIRST + 9000) == list(range(FIRST, FIRST + 9000))
    for at, tag in enumerate(large):
        assert reader.find(tag, False, 1 << 60) == [FIRST + at]
    assert reader.find(b"x", True, 1 << 60) == [FIRST + at for at in range(5)]


def test_a_lookup_reads_one_block_and_a_prefix_those_that_have_it() -> None:
    pairs: Pairs = {f"order/{at:06d}".encode(): [FIRST + at] for at in range(10_000)}
    data = encode_tags(pairs, FIRST)
    read = CountingRead(data)
    reader = TagsReader(read, len(data))
    assert read.calls == 3
    assert read.bytes_read < len(data) // 25
    read.calls = read.bytes_read = 0
    assert reader.find(b"order/005000", False, 1 << 60) == [FIRST + 5000]
    assert read.calls == 1
    assert read.bytes_read <= BLOCK_BYTES + 200
    read.calls = 0
    assert len(reader.find(b"order/0050", True, 1 << 60)) == 100
    assert read.calls <= 2
    read.calls = 0
    assert len(reader.find(b"order/", True, 1 << 60)) == 10_000
    assert read.calls == len(data) // BLOCK_BYTES or read.calls > 50


@pytest.mark.parametrize("is_prefix", [False, True])
def test_a_tag_in_front_of_all_or_behind_them_is_looked_for_in_no_block(is_prefix: bool) -> None:
    pairs: Pairs = {f"order/{at:06d}".encode(): [FIRST + at] for at in range(1000, 2000)}
    data = encode_tags(pairs, FIRST)
    read = CountingRead(data)
    reader = TagsReader(read, len(data))
    read.calls = 0
    for tag in (b"", b"order/000999", b"order/002000", b"order/0019991", b"p"):
        seqs = expected(pairs, tag, is_prefix, 1 << 60)
        assert reader.find(tag, is_prefix, 1 << 60) == seqs
        assert read.calls == 0 or seqs
        read.calls = 0
    for tag in (b"order/001000", b"order/001999"):
        assert reader.find(tag, is_prefix, 1 << 60) == expected(pairs, tag, is_prefix, 1 << 60)


def test_keys_in_the_directory_are_as_short_as_they_can_be() -> None:
    pairs: Pairs = {bytes((at,)) * 4000: [FIRST + at] for at in range(1, 100)}
    data = encode_tags(pairs, FIRST)
    assert reader_of(data).size_bytes < 4000 + 100 * 80


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_any_byte_changed_is_damage_or_the_same_answer(seed: int) -> None:
    rng = Random(seed)
    pairs = random_pairs(rng, 60) if seed else {f"order/{at:03d}".encode(): [FIRST + at] for at in range(300)}
    data = encode_tags(pairs, FIRST)
    tags = rng.sample(sorted(pairs), min(5, len(pairs)))
    step = 1 + len(data) // 3000
    for offset in range(rng.randrange(step), len(data), step):
        changed = bytearray(data)
        changed[offset] ^= 1 << rng.randrange(8)
        with suppress(TagsDamage):
            reader = reader_of(bytes(changed))
            for tag in tags:
                with suppress(TagsDamage):
                    assert reader.find(tag, False, 1 << 60) == pairs[tag]
                with suppress(TagsDamage):
                    assert reader.find(tag[:4], True, 1 << 60) == expected(pairs, tag[:4], True, 1 << 60)
        with pytest.raises(TagsDamage):
            list(reader_of(bytes(changed)).all_seqs())


def test_a_file_cut_anywhere_is_damage() -> None:
    data = encode_tags({b"a": [FIRST], b"b": [FIRST + 1]}, FIRST)
    for size in range(len(data)):
        with pytest.raises(TagsDamage):
            reader_of(data[:size])


def refooted(data: bytes, at: int, value: bytes) -> bytes:
    footer = bytearray(data[-FOOTER_BYTES:-8])
    footer[at : at + len(value)] = value
    return data[:-FOOTER_BYTES] + footer + xxhash.xxh3_64_intdigest(bytes(footer)).to_bytes(8, "little")


def test_another_version_is_refused_and_another_magic_is_damage() -> None:
    data = encode_tags({b"a": [FIRST]}, FIRST)
    with pytest.raises(UnknownVersion, match="version 2"):
        reader_of(refooted(data, 8, b"\2"))
    with pytest.raises(TagsDamage, match="unknown magic"):
        reader_of(refooted(data, 0, b"TOPICIDX"))
    with pytest.raises(TagsDamage, match="no room for a directory"):
        reader_of(refooted(data, 12, b"\xff"))
