"""The `.del` file of a segment: the set of its dead records, as a bitmap.

::

    off  size  field
      0    8   magic        b"TOPICDEL"
      8    4   version      1
     12    4   count        of the segment's records
     16    8   first_seq
     24    4   dead_count   bits set
     28    4   zero
     32    8   complete_to  every delete in the shard's log below this ordinal is included
     40    N   bitmap       N = ceil(count / 8); seq first_seq + i is bit i & 7 of byte i >> 3
      .    8   xxh3_64 over all before it

    >>> data = encode_dead(first_seq=7, count=10, bitmap=b"\\x05\\x02", complete_to=99)
    >>> data[:42].hex(" ", -4)
    '544f5049 4344454c 01000000 0a000000 07000000 00000000 03000000 00000000 63000000 00000000 0502'
    >>> decode_dead(data, first_seq=7, count=10)
    DeadSet(bitmap=bytearray(b'\\x05\\x02'), dead_count=3, complete_to=99)

The file is replaced atomically, so it holds the old set or the new one. It may be newer than the snapshot
(the checkpoint writes it first), and then has more dead records, never fewer. How to change the format: as in
`data_file.py`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from topicsd.log.file_header import UnknownVersion

MAGIC = b"TOPICDEL"
VERSION = 1

_HEAD = struct.Struct("<8sIIQIIQ")
_CHECKSUM = struct.Struct("<Q")

# Conversion through a number in base 2: the only one between bytes and bits without a Python loop.
_TO_DIGITS = b"0" + b"1" * 255
_FROM_DIGITS = bytes.maketrans(b"01", b"\0\1")


class DeadDamage(Exception):
    """Bytes that are not a dead set of the segment, with the reason."""


class DeadSet(NamedTuple):
    bitmap: bytearray
    dead_count: int
    complete_to: int


def dead_bytes(count: int) -> int:
    """Return the size of the file for a segment of `count` records."""
    return _HEAD.size + (count + 7) // 8 + _CHECKSUM.size


def pack_marks(marks: bytes | bytearray) -> bytes:
    """Pack one byte per record, nonzero when it is dead, into a bitmap, without a Python loop.

    >>> pack_marks(b"\\1\\0\\1\\0\\0\\0\\0\\0\\0\\1"), unpack_marks(b"\\x05\\x02", 10).hex()
    (b'\\x05\\x02', '01000100000000000001')
    """
    if not marks:
        return b""
    return int(marks[::-1].translate(_TO_DIGITS), 2).to_bytes((len(marks) + 7) // 8, "little")


def unpack_marks(bitmap: bytes | bytearray, count: int) -> bytearray:
    """Unpack a bitmap into one byte per record, 1 when it is dead."""
    digits = format(int.from_bytes(bitmap, "little"), f"0{count}b") if count else ""
    return bytearray(digits[::-1].encode().translate(_FROM_DIGITS))


def encode_dead(first_seq: int, count: int, bitmap: bytes | bytearray, complete_to: int) -> bytes:
    assert len(bitmap) == (count + 7) // 8
    number = int.from_bytes(bitmap, "little")
    assert number >> count == 0, "the bitmap marks a record after the last one"
    body = _HEAD.pack(MAGIC, VERSION, count, first_seq, number.bit_count(), 0, complete_to) + bitmap
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def decode_dead(data: bytes, first_seq: int, count: int) -> DeadSet:
    """Decode the dead records among the first `count` records.

    The file may cover fewer records, since an active segment grows without a new file, or more, since an
    unfinished checkpoint may have written it for a longer segment.
    """
    if len(data) < dead_bytes(0):
        raise DeadDamage(f"has {len(data)} bytes, too few for a header")
    body = data[: -_CHECKSUM.size]
    if data[-_CHECKSUM.size :] != _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)):
        raise DeadDamage("the checksum does not match the bytes")
    magic, version, file_count, file_first_seq, dead_count, _, complete_to = _HEAD.unpack_from(body)
    if magic != MAGIC:
        raise DeadDamage("has an unknown magic")
    if version != VERSION:
        raise UnknownVersion(f"dead set format version {version}; this program reads version {VERSION}")
    if file_first_seq != first_seq or len(data) != dead_bytes(file_count):
        raise DeadDamage(f"covers {file_count} records from seq {file_first_seq}")
    bitmap = bytearray(body[_HEAD.size :])
    if int.from_bytes(bitmap, "little").bit_count() != dead_count:
        raise DeadDamage(f"does not have the {dead_count} dead records that its header counts")
    number = int.from_bytes(bitmap, "little") & ((1 << count) - 1)
    return DeadSet(bytearray(number.to_bytes((count + 7) // 8, "little")), number.bit_count(), complete_to)
