"""The `.idx` file of a segment: the place of each record in .data, by seq, at a fixed stride.

The entry of seq `s` is at `(s - first_seq) * 20`::

    off  size  field
      0    4   offset  of the frame in .data
      4    4   len     all bytes of the frame; 0 is a dead record of a compacted segment
      8    8   ts      of the record; for a dead record that of the record before it
     16    1   flags   of the frame
     17    3   pad     0

A sealed file ends with a footer; the index of an active segment has none::

    off  size  field
      0    8   magic    b"TOPICIDX"
      8    4   version  1
     12    4   count    of the entries
     16    8   xxh3_64 over the entries and the 16 bytes before this field

Each frame begins where the one before it ends, dead entries included (they begin at the end of the frame
before): so a range of seqs is one range of bytes, and an index without a footer can be checked.

    >>> places, lengths, times_ms = array("I", [110, 164]), array("I", [54, 60]), array("Q", [1000, 1001])
    >>> entries = encode_entries(places, lengths, times_ms, flags=b"\\1\\0")
    >>> entries.hex(" ", 4)
    '6e000000 36000000 e8030000 00000000 01000000 a4000000 3c000000 e9030000 00000000 00000000'
    >>> footer = encode_footer(entries)
    >>> footer.hex(" ", 4)
    '544f5049 43494458 01000000 02000000 73777c0e 26891c20'
    >>> decode_index(entries + footer, first_seq=7, count=2, sealed=True).place_of(8)
    (164, 60)

The code does not loop over records in Python: columns are split and joined as strided slices. How to change
the format: as in `data_file.py`, whose version changes with this one.
"""

from __future__ import annotations

import struct
import sys
from array import array

import xxhash

from topicsd.log.file_header import UnknownVersion
from topicsd.segment.data_file import SEGMENT_HEADER_BYTES

MAGIC = b"TOPICIDX"
VERSION = 1

ENTRY_BYTES = 20
_ENTRY_WORDS = ENTRY_BYTES // 4
_FOOTER_HEAD = struct.Struct("<8sII")
_CHECKSUM = struct.Struct("<Q")
FOOTER_BYTES = _FOOTER_HEAD.size + _CHECKSUM.size

# The flags of a record whose bytes in .data are damaged; only in memory, never in a file.
DAMAGED = 0x80

# The columns are copied in the machine's byte order.
assert sys.byteorder == "little"
assert array("I").itemsize == 4
assert array("Q").itemsize == 8


class IndexDamage(Exception):
    """Bytes that are not an index of the segment, with the reason."""


class SegmentIndex:
    """The index of one segment in memory: 17 bytes per record."""

    __slots__ = ("count", "first_seq", "flags", "has_damage", "lengths", "offsets", "times_ms")

    def __init__(
        self,
        first_seq: int,
        offsets: array[int],
        lengths: array[int],
        times_ms: array[int],
        flags: bytes | bytearray,
        has_damage: bool = False,
    ) -> None:
        assert len(offsets) == len(lengths) == len(times_ms) == len(flags)
        self.first_seq = first_seq
        self.count = len(offsets)
        self.offsets = offsets
        self.lengths = lengths
        self.times_ms = times_ms
        self.flags = flags
        self.has_damage = has_damage

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory."""
        return 17 * self.count + 500

    @property
    def data_end(self) -> int:
        """Offset in .data where the last frame ends."""
        return self.offsets[-1] + self.lengths[-1] if self.count else SEGMENT_HEADER_BYTES

    def place_of(self, seq: int) -> tuple[int, int]:
        """Return offset and length of a record's frame; the length of a dead record is 0."""
        at = seq - self.first_seq
        return self.offsets[at], self.lengths[at]


def encode_entries(
    offsets: array[int], lengths: array[int], times_ms: array[int], flags: bytes | bytearray
) -> bytes:
    count = len(offsets)
    assert count == len(lengths) == len(times_ms) == len(flags)
    words = array("I", bytes(ENTRY_BYTES * count))
    time_words = array("I", times_ms.tobytes())
    flag_words = bytearray(4 * count)
    flag_words[::4] = flags
    words[0::_ENTRY_WORDS] = offsets
    words[1::_ENTRY_WORDS] = lengths
    words[2::_ENTRY_WORDS] = time_words[0::2]
    words[3::_ENTRY_WORDS] = time_words[1::2]
    words[4::_ENTRY_WORDS] = array("I", bytes(flag_words))
    return words.tobytes()


def encode_footer(entries: bytes) -> bytes:
    """Encode the footer that seals a file with exactly these entries."""
    assert len(entries) % ENTRY_BYTES == 0
    head = _FOOTER_HEAD.pack(MAGIC, VERSION, len(entries) // ENTRY_BYTES)
    return head + _CHECKSUM.pack(_checksum(entries, head))


def decode_index(data: bytes, first_seq: int, count: int, sealed: bool) -> SegmentIndex:
    """Decode the index of `count` records; in an unsealed file the bytes after them are ignored."""
    size = count * ENTRY_BYTES
    if sealed:
        _check_footer(data, count)
    elif len(data) < size:
        raise IndexDamage(f"has {len(data)} bytes, but {count} entries need {size}")
    words = array("I", data[:size])
    time_words = array("I", bytes(8 * count))
    time_words[0::2] = words[2::_ENTRY_WORDS]
    time_words[1::2] = words[3::_ENTRY_WORDS]
    index = SegmentIndex(
        first_seq,
        words[0::_ENTRY_WORDS],
        words[1::_ENTRY_WORDS],
        array("Q", time_words.tobytes()),
        data[16:size:ENTRY_BYTES],
    )
    if not sealed:
        _check_columns(index, words[4::_ENTRY_WORDS])
    return index


def _check_footer(data: bytes, count: int) -> None:
    size = count * ENTRY_BYTES
    if len(data) != size + FOOTER_BYTES:
        raise IndexDamage(
            f"has {len(data)} bytes, but {count} entries and a footer need {size + FOOTER_BYTES}"
        )
    head = data[size : size + _FOOTER_HEAD.size]
    if data[size + _FOOTER_HEAD.size :] != _CHECKSUM.pack(_checksum(memoryview(data)[:size], head)):
        raise IndexDamage("the checksum does not match the bytes")
    magic, version, entry_count = _FOOTER_HEAD.unpack(head)
    if magic != MAGIC:
        raise IndexDamage("the footer has an unknown magic")
    if version != VERSION:
        raise UnknownVersion(f"index format version {version}; this program reads version {VERSION}")
    if entry_count != count:
        raise IndexDamage(f"has {entry_count} entries instead of {count}")


def _check_columns(index: SegmentIndex, flag_words: array[int]) -> None:
    """Check what must hold for the columns of an index without a checksum.

    A timestamp that is wrong but still in order passes.
    """
    # Checks offset + length = next offset for all records in one addition of large integers.
    offsets, lengths = index.offsets, index.lengths
    if index.count and (
        offsets[0] != SEGMENT_HEADER_BYTES
        or _number(offsets[:-1]) + _number(lengths[:-1]) != _number(offsets[1:])
    ):
        raise IndexDamage("the frames are not contiguous")
    # Sorting an ordered list is faster than comparing each pair.
    if sorted(index.times_ms) != index.times_ms.tolist():
        raise IndexDamage("the timestamps are not in order")
    if flag_words and max(flag_words) >= DAMAGED:
        raise IndexDamage("it has unknown flags")


def _number(column: array[int]) -> int:
    return int.from_bytes(column.tobytes(), "little")


def _checksum(entries: bytes | memoryview, head: bytes) -> int:
    digest = xxhash.xxh3_64(entries)
    digest.update(head)
    return digest.intdigest()
