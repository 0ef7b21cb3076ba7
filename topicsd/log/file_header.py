"""The first frame of every WAL file, which identifies the file.

The payload of a FileHeader frame (its other fields are 0, but for `ts`, when the file was made)::

    off  size  field
      0    8   magic          b"TOPICWAL"
      8    4   version        1
     12    4   shard
     16   16   instance       of the data directory; a file of another one is refused
     32   16   epoch          random; every BatchEnd of the file begins with it
     48    8   first_ordinal  the ordinal of the first frame after the header, as in the file's name
     56    8   chain_seed     the chain of the batch before the file's first one
     64    8   file_bytes     what was preallocated; a shorter file was cut by another program

The header itself has no ordinal. `first_ordinal` and `chain_seed` tie the file to the one before it: bytes
of that file after the batch with this chain were cut off by a recovery and stay cut off.

    >>> header = FileHeader(shard=1, instance=b"i" * 16, epoch=b"e" * 16, first_ordinal=1, chain_seed=0,
    ...                     file_bytes=65536, ts=0)
    >>> frame = encode_file_header(header)
    >>> len(frame) == FILE_HEADER_BYTES, frame[38:62].hex(" ", 4)
    (True, '544f5049 4357414c 01000000 01000000 69696969 69696969')
    >>> parse_file_header(frame) == header
    True

How to change the format: raise VERSION, keep reading the earlier versions, and add a golden file of the new
version to `tests/golden/`. A file of an unknown version is refused.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from topicsd.log.frame import CHECKSUM_BYTES, HEADER_BYTES, FrameDamage, FrameType, encode_frame, parse_frame

MAGIC = b"TOPICWAL"
VERSION = 1
EPOCH_BYTES = 16

_LAYOUT = struct.Struct("<8sII16s16sQQQ")
FILE_HEADER_BYTES = HEADER_BYTES + _LAYOUT.size + CHECKSUM_BYTES


class UnknownVersion(Exception):
    """A file of a format version that this program does not read."""


class FileHeader(NamedTuple):
    shard: int
    instance: bytes
    epoch: bytes
    first_ordinal: int
    chain_seed: int
    file_bytes: int
    ts: int


def encode_file_header(header: FileHeader) -> bytes:
    assert len(header.instance) == 16
    assert len(header.epoch) == EPOCH_BYTES
    payload = _LAYOUT.pack(
        MAGIC,
        VERSION,
        header.shard,
        header.instance,
        header.epoch,
        header.first_ordinal,
        header.chain_seed,
        header.file_bytes,
    )
    return encode_frame(FrameType.FILE_HEADER, ts=header.ts, payload=payload)


def parse_file_header(buffer: bytes) -> FileHeader:
    frame = parse_frame(buffer, 0, min(len(buffer), FILE_HEADER_BYTES))
    if frame.type != FrameType.FILE_HEADER or len(frame.payload) != _LAYOUT.size:
        raise FrameDamage(0, "the first frame is not a file header")
    magic, version, shard, instance, epoch, first_ordinal, chain_seed, size = _LAYOUT.unpack(frame.payload)
    if magic != MAGIC:
        raise FrameDamage(0, "the file header has an unknown magic")
    if version != VERSION:
        raise UnknownVersion(f"WAL format version {version}; this program reads version {VERSION}")
    return FileHeader(shard, instance, epoch, first_ordinal, chain_seed, size, frame.ts)
