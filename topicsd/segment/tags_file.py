"""The `.tags` file of a sealed segment: the records of each tag, found without reading the whole file.

Blocks of about 4 KiB, a directory of them, and a footer. The blocks hold the tags of the segment in the
order of their bytes, each tag in one block (which may then be larger)::

    block      off  size  field
                 0    4   n          tags in the block
                 4   4n   tag_ends   where each tag ends in `tags`
                  .  4n   seq_ends   where the seqs of each tag end in `seqs`, counted in seqs
                  .   T   tags
                  .  4S   seqs       of each tag, rising, as seq - first_seq
                  .   8   xxh3_64 over the block up to here

    directory    0   8n   offsets    of each block in the file
                 .   4n   lengths    of each block
                 .   4n   key_ends   where each key ends in `keys`
                 .    K   keys       of each block: not above its first tag, above the last one before it

    footer       0    8   magic      b"TOPICTAG"
                 8    4   version    1
                12    4   blocks
                16    8   first_seq
                24    4   tags
                28    4   seqs
                32    8   directory offset; the directory ends where the footer begins
                40    8   xxh3_64 over the directory
                48    8   xxh3_64 over the footer up to here

A lookup is two binary searches, one over the keys and one in a block. A key is the shortest that separates
its block from the one before it, so that the directory does not repeat tags of up to 65,535 bytes.

    >>> data = encode_tags({b"order/1": [7, 9], b"order/2": [8]}, first_seq=7)
    >>> data[:46].hex(" ", -4)
    '02000000 07000000 0e000000 02000000 03000000 6f726465 722f316f 72646572 2f320000 00000200 00000100 0000'
    >>> reader = TagsReader(lambda offset, size: data[offset : offset + size], len(data))
    >>> reader.find(b"order/1", False, 100), reader.find(b"order/", True, 9)
    ([7, 9], [7, 8])

How to change the format: as in `data_file.py`.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise

import xxhash

from topicsd.log.file_header import UnknownVersion

MAGIC = b"TOPICTAG"
VERSION = 1
BLOCK_BYTES = 4096

_FOOTER = struct.Struct("<8sIIQIIQQ")
_COUNT = struct.Struct("<I")
_CHECKSUM = struct.Struct("<Q")
FOOTER_BYTES = _FOOTER.size + _CHECKSUM.size
# Overhead of a tag in a block: its two ends.
_TAG_BYTES = 8

_checksum = xxhash.xxh3_64_intdigest


class TagsDamage(Exception):
    """Bytes that are not a tags file of the segment, with the reason."""


def encode_tags(pairs: dict[bytes, list[int]], first_seq: int) -> bytes:
    """Encode the file for these tags; the seqs of each tag must be in ascending order."""
    tags = sorted(pairs)
    seqs = [pairs[tag] for tag in tags]
    tag_lengths = list(map(len, tags))
    seq_counts = list(map(len, seqs))
    places = array("I", [seq - first_seq for of_tag in seqs for seq in of_tag])
    blocks: list[bytes] = []
    keys: list[bytes] = []
    seqs_done = 0
    for low, high in _block_ranges(tag_lengths, seq_counts):
        keys.append(_separator(tags[low - 1], tags[low]) if low else tags[low])
        seq_ends = array("I", accumulate(seq_counts[low:high]))
        body = b"".join(
            (
                _COUNT.pack(high - low),
                array("I", accumulate(tag_lengths[low:high])).tobytes(),
                seq_ends.tobytes(),
                *tags[low:high],
                places[seqs_done : seqs_done + seq_ends[-1]].tobytes(),
            )
        )
        blocks.append(body + _CHECKSUM.pack(_checksum(body)))
        seqs_done += seq_ends[-1]
    return _with_directory(blocks, keys, first_seq, len(tags), seqs_done)


def _with_directory(
    blocks: list[bytes], keys: list[bytes], first_seq: int, tag_count: int, seq_count: int
) -> bytes:
    lengths = array("I", map(len, blocks))
    ends = [*accumulate(lengths, initial=0)]
    key_ends = array("I", accumulate(map(len, keys)))
    directory = b"".join((array("Q", ends[:-1]).tobytes(), lengths.tobytes(), key_ends.tobytes(), *keys))
    footer = _FOOTER.pack(
        MAGIC, VERSION, len(blocks), first_seq, tag_count, seq_count, ends[-1], _checksum(directory)
    )
    return b"".join((*blocks, directory, footer, _CHECKSUM.pack(_checksum(footer))))


def _block_ranges(tag_lengths: list[int], seq_counts: list[int]) -> Iterator[tuple[int, int]]:
    """Iterate over the range of tags of each block: as many as fit, at least one."""
    ends = [
        *accumulate(
            _TAG_BYTES + size + 4 * count for size, count in zip(tag_lengths, seq_counts, strict=True)
        )
    ]
    low = done = 0
    while low < len(ends):
        high = max(low + 1, bisect_right(ends, done + BLOCK_BYTES, low))
        yield low, high
        low, done = high, ends[high - 1]


def _separator(before: bytes, tag: bytes) -> bytes:
    """Return the shortest prefix of `tag` that sorts after `before`, given `before` < `tag`."""
    same = next((at for at, (one, other) in enumerate(zip(before, tag, strict=False)) if one != other), None)
    return tag[: (len(before) if same is None else same) + 1]


class TagsReader:
    """Lookups in one file, with its directory and its last tag in memory.

    The last tag saves reads: where tags rise with the seqs, as order numbers do, a lookup reads blocks of few
    segments.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        if size < FOOTER_BYTES:
            raise TagsDamage(f"has {size} bytes, too few for a footer")
        footer = self._exactly(size - FOOTER_BYTES, FOOTER_BYTES)
        if footer[_FOOTER.size :] != _CHECKSUM.pack(_checksum(footer[: _FOOTER.size])):
            raise TagsDamage("the checksum of the footer does not match")
        magic, version, blocks, first_seq, tags, seqs, place, checksum = _FOOTER.unpack_from(footer)
        if magic != MAGIC:
            raise TagsDamage("the footer has an unknown magic")
        if version != VERSION:
            raise UnknownVersion(f"tags format version {version}; this program reads version {VERSION}")
        directory_bytes = size - FOOTER_BYTES - place
        if directory_bytes < 16 * blocks:
            raise TagsDamage(f"has no room for a directory of {blocks} blocks")
        directory = self._exactly(place, directory_bytes)
        if _checksum(directory) != checksum:
            raise TagsDamage("the checksum of the directory does not match")
        self.first_seq: int = first_seq
        self.tag_count: int = tags
        self.seq_count: int = seqs
        self._offsets = array("Q", directory[: 8 * blocks])
        self._lengths = array("I", directory[8 * blocks : 12 * blocks])
        ends = array("I", directory[12 * blocks : 16 * blocks])
        keys_at = 16 * blocks
        self._keys = [directory[keys_at + start : keys_at + end] for start, end in pairwise((0, *ends))]
        self._last = b""
        if blocks:
            last = _Block(self._block(blocks - 1))
            self._last = last.tag(last.count - 1)

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory."""
        return sum(map(len, self._keys)) + 60 * len(self._keys) + 500

    def find(self, tag: bytes, is_prefix: bool, below: int) -> list[int]:
        """Return the seqs below `below` with the tag, or with the prefix, in ascending order."""
        seqs: list[int] = []
        if not self._keys or tag > self._last:
            return seqs
        first = self._keys[0]
        if tag < first and not (is_prefix and first.startswith(tag)):
            return seqs
        # Begin at the last block whose key is not above the tag; a prefix may continue in the next blocks.
        at = max(0, bisect_right(self._keys, tag) - 1)
        while at < len(self._keys):
            seqs += self._find_in(self._block(at), tag, is_prefix)
            at += 1
            if not is_prefix or at == len(self._keys) or not self._keys[at].startswith(tag):
                break
        if is_prefix:
            seqs.sort()
        del seqs[bisect_left(seqs, below) :]
        return seqs

    def find_each(self, start: bytes, selects: Callable[[bytes], bool]) -> list[int]:
        """Return the seqs of the tags that begin with `start` and that `selects` accepts, in any order."""
        seqs: list[int] = []
        if not self._keys or start > self._last:
            return seqs
        at = max(0, bisect_right(self._keys, start) - 1)
        while at < len(self._keys):
            block = _Block(self._block(at))
            low = bisect_left(range(block.count), start, key=block.tag)
            for number in range(low, block.count):
                tag = block.tag(number)
                if not tag.startswith(start):
                    return seqs
                if selects(tag):
                    seqs += self._seqs(block, number, number + 1)
            at += 1
        return seqs

    def check(self) -> None:
        """Read every block and verify its checksum."""
        for at in range(len(self._keys)):
            self._block(at)

    def all_seqs(self) -> Iterator[tuple[bytes, list[int]]]:
        """Iterate over every tag with its seqs; reads and checks the whole file."""
        for at in range(len(self._keys)):
            block = _Block(self._block(at))
            for number in range(block.count):
                yield block.tag(number), self._seqs(block, number, number + 1)

    def _find_in(self, data: bytes, tag: bytes, is_prefix: bool) -> list[int]:
        block = _Block(data)
        low = bisect_left(range(block.count), tag, key=block.tag)
        high = low
        if is_prefix:
            high = bisect_left(
                range(block.count), True, low, key=lambda number: not block.tag(number).startswith(tag)
            )
        elif low < block.count and block.tag(low) == tag:
            high = low + 1
        return self._seqs(block, low, high)

    def _seqs(self, block: _Block, low: int, high: int) -> list[int]:
        first_seq = self.first_seq
        return [first_seq + place for place in block.seqs(low, high)]

    def _block(self, at: int) -> bytes:
        data = self._exactly(self._offsets[at], self._lengths[at])
        if _CHECKSUM.unpack_from(data, len(data) - 8)[0] != _checksum(memoryview(data)[:-8]):
            raise TagsDamage(f"the checksum of the block at {self._offsets[at]} does not match")
        return data

    def _exactly(self, offset: int, size: int) -> bytes:
        data = self._read(offset, size)
        if len(data) != size:
            raise TagsDamage(f"{len(data)} bytes at {offset} instead of {size}")
        return data


class _Block:
    """The columns of one block with a verified checksum."""

    __slots__ = ("_data", "_seq_ends", "_seqs_at", "_tag_ends", "_tags_at", "count")

    def __init__(self, data: bytes) -> None:
        (count,) = _COUNT.unpack_from(data)
        self._data = data
        self.count: int = count
        self._tag_ends = array("I", data[4 : 4 + 4 * count])
        self._seq_ends = array("I", data[4 + 4 * count : 4 + 8 * count])
        self._tags_at = 4 + 8 * count
        self._seqs_at = self._tags_at + self._tag_ends[-1]

    def tag(self, number: int) -> bytes:
        start = self._tag_ends[number - 1] if number else 0
        return self._data[self._tags_at + start : self._tags_at + self._tag_ends[number]]

    def seqs(self, low: int, high: int) -> array[int]:
        """Return the seqs of the tags from `low` to before `high`, relative to the first seq."""
        if low == high:
            return array("I")
        start = self._seq_ends[low - 1] if low else 0
        end = self._seq_ends[high - 1]
        return array("I", self._data[self._seqs_at + 4 * start : self._seqs_at + 4 * end])


def tags_of(records: Iterable[tuple[int, bytes]]) -> dict[bytes, list[int]]:
    """Group seqs by tag for `encode_tags`; records without a tag are left out."""

    pairs: dict[bytes, list[int]] = {}
    for seq, tag in records:
        if tag:
            of_tag = pairs.get(tag)
            if of_tag is None:
                pairs[tag] = [seq]
            else:
                of_tag.append(seq)
    return pairs
