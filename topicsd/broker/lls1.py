"""The LLS1 blob: one object with the records of many topics, a slice for each.

    off  size  field
      0    4   magic       b"LLS1"
      4    4   header_len  big-endian
      8    H   header      JSON
      .    .   bodies      one after the other, in the order of the header

The header is ``{"version":1,"created_at_ms":…,"partitions":[…]}``, and each partition in it is
``{"topic","partition","msg_count","encoding","body_offset","body_length"}``. `body_offset` counts from the
end of the header. The catalog stores offsets from the start of the object, so a reader of a slice needs no
header.

    >>> slices = [SliceBody("orders", 2, [b"first", b"second"]), SliceBody("orders:7", 1, [b"third"])]
    >>> blob = encode_blob(1000, "frames-v1", slices)
    >>> data = b"".join(blob.parts)
    >>> data[:8].hex(" ", 4), data[-16:]
    ('4c4c5331 000000ff', b'firstsecondthird')
    >>> blob.offsets, len(data)
    ([263, 274], 279)
    >>> [(one.name, one.offset, one.length) for one in read_blob(data).slices]
    [('orders', 263, 11), ('orders:7', 274, 5)]

Partition 0 of `orders` is the topic `orders`, and partition 7 is the topic `orders:7`. Every length is
checked against the bytes available: a blob is whole, or reading raises `BlobDamage`. How to change the
format: another `version`, which an old reader refuses; another encoding of bodies needs no new version.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

MAGIC: Final = b"LLS1"
VERSION: Final = 1
FOLDER: Final = "llog/wal-shared"
"""The folder of blobs in a store; what follows in a key is random, so that keys are spread over a store."""

_HEAD: Final = struct.Struct(">4sI")
_HEADER_BYTES_MAX: Final = 64 << 20
_PARTITION: Final = re.compile(r"(.+):([1-9][0-9]{0,8})")


class BlobDamage(Exception):
    """Bytes that are not a blob, with the reason."""


class SliceHeader(msgspec.Struct, frozen=True):
    """What the header says about one slice."""

    topic: str
    partition: int
    msg_count: int
    encoding: str
    body_offset: int
    body_length: int


class _Header(msgspec.Struct, frozen=True):
    version: int
    created_at_ms: int
    partitions: list[SliceHeader]


class SliceBody(NamedTuple):
    """The body of one topic, to be written; its chunks are joined."""

    name: str
    record_count: int
    chunks: Sequence[bytes]


class EncodedBlob(NamedTuple):
    parts: list[bytes]
    offsets: list[int]
    """Where each body begins, from the start of the object."""


class ReadSlice(NamedTuple):
    """One slice of a blob; `offset` counts from the start of the object."""

    name: str
    record_count: int
    encoding: str
    offset: int
    length: int


class ReadBlob(NamedTuple):
    created_ms: int
    slices: list[ReadSlice]


def partition_of(name: str) -> tuple[str, int]:
    """Return topic and partition of a name.

    >>> partition_of("orders"), partition_of("orders:7"), partition_of("orders:07")
    (('orders', 0), ('orders', 7), ('orders:07', 0))
    """
    match = _PARTITION.fullmatch(name)
    return (name, 0) if match is None else (match[1], int(match[2]))


def name_of(topic: str, partition: int) -> str:
    """Return the name of a partition: the inverse of `partition_of`."""
    return f"{topic}:{partition}" if partition else topic


def encode_blob(created_ms: int, encoding: str, slices: Sequence[SliceBody]) -> EncodedBlob:
    """Encode a blob as parts, of which the first one is magic and header."""
    headers: list[SliceHeader] = []
    parts = [b""]
    at = 0
    for name, count, chunks in slices:
        topic, partition = partition_of(name)
        length = sum(map(len, chunks))
        headers.append(SliceHeader(topic, partition, count, encoding, at, length))
        parts += chunks
        at += length
    header = msgspec.json.encode(_Header(VERSION, created_ms, headers))
    parts[0] = _HEAD.pack(MAGIC, len(header)) + header
    bodies_at = len(parts[0])
    return EncodedBlob(parts, [bodies_at + one.body_offset for one in headers])


def read_blob(data: bytes) -> ReadBlob:
    """Read the header of a whole blob, and check that its bodies are there."""
    if len(data) < _HEAD.size:
        raise BlobDamage(f"has {len(data)} bytes, too few for a blob")
    magic, header_len = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise BlobDamage("has an unknown magic")
    bodies_at = _HEAD.size + header_len
    if header_len > _HEADER_BYTES_MAX or bodies_at > len(data):
        raise BlobDamage(f"header length {header_len} exceeds the remaining {len(data) - _HEAD.size} bytes")
    try:
        header = msgspec.json.decode(data[_HEAD.size : bodies_at], type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BlobDamage(f"the header: {error}") from None
    if header.version != VERSION:
        raise BlobDamage(f"version {header.version}; this program reads version {VERSION}")
    slices: list[ReadSlice] = []
    for number, one in enumerate(header.partitions):
        if (
            one.body_offset < 0
            or one.body_length < 0
            or bodies_at + one.body_offset + one.body_length > len(data)
        ):
            raise BlobDamage(f"partitions[{number}]: the body is not within the blob")
        offset = bodies_at + one.body_offset
        name = name_of(one.topic, one.partition)
        slices.append(ReadSlice(name, one.msg_count, one.encoding, offset, one.body_length))
    return ReadBlob(header.created_at_ms, slices)
