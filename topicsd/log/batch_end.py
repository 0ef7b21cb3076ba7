"""The BatchEnd frame, which closes a batch and makes it all or nothing.

The payload of a BatchEnd frame (its other fields are 0, but for `ts`)::

    off  size  field
      0   16   epoch    of the file, so that a search after damage is one `bytes.find`
     16    8   ordinal  of this frame in the shard; the batch's frames are the ordinals before it
     24    8   offset   in the file, where the batch's first frame begins
     32    8   length   of the batch's frames, up to this one
     40    8   chain    xxh3_64 over the batch's frames, seeded with the chain of the batch before
     48    8   synced   offset in this file up to which it, its name and all files before it were known
                        to be synced when this was written; 0 is nothing yet

A frame's own checksum proves that the frame is whole. The chain proves that the frame belongs here: a batch
that failed and was overwritten, or that a recovery cut off, can never follow the batches written instead.

    >>> end = BatchEnd(epoch=b"e" * 16, ordinal=9, offset=118, length=54, chain=5, synced=118)
    >>> frame = encode_batch_end(end, ts=0)
    >>> len(frame) == BATCH_END_BYTES, find_batch_end(b"x" * 54 + frame, b"e" * 16, 0)
    (True, 54)
    >>> parse_batch_end(frame, 0, b"e" * 16) == end
    True
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from topicsd.log.frame import CHECKSUM_BYTES, HEADER, HEADER_BYTES, LEN_BYTES, U64, FrameType

_LAYOUT = struct.Struct("<16sQQQQQ")
BATCH_END_BYTES = HEADER_BYTES + _LAYOUT.size + CHECKSUM_BYTES
_CHECKSUM_AT = BATCH_END_BYTES - CHECKSUM_BYTES
# Length, type and flags are constant: a cheap first check of a search hit.
_OPENING = HEADER.pack(BATCH_END_BYTES - LEN_BYTES, FrameType.BATCH_END, 0, 0, 0, 0, 0, 0, 0)[:22]

_xxh3 = xxhash.xxh3_64_intdigest
chain_of = xxhash.xxh3_64_intdigest

# After the opening: ts, no node, no tag, the length of the payload, and the payload.
_FRAME = struct.Struct("<22sQHHI16sQQQQQ")
assert _FRAME.size == _CHECKSUM_AT


class BatchEnd(NamedTuple):
    epoch: bytes
    ordinal: int
    offset: int
    length: int
    chain: int
    synced: int


def encode_batch_end(end: BatchEnd, ts: int) -> bytes:
    return pack_batch_end(ts, *end)


def pack_batch_end(
    ts: int, epoch: bytes, ordinal: int, offset: int, length: int, chain: int, synced: int
) -> bytes:
    """Encode a BatchEnd from its fields: hot path."""
    frame = _FRAME.pack(_OPENING, ts, 0, 0, _LAYOUT.size, epoch, ordinal, offset, length, chain, synced)
    return frame + U64.pack(_xxh3(frame[LEN_BYTES:]))


def find_batch_end(buffer: bytes, epoch: bytes, at: int) -> int:
    """Find the next possible BatchEnd of this epoch at or after `at`; -1 when there is none.

    Payloads are arbitrary bytes and may hold an epoch: check each hit with `parse_batch_end`.
    """
    epoch_at = buffer.find(epoch, at + HEADER_BYTES)
    return epoch_at if epoch_at < 0 else epoch_at - HEADER_BYTES


def parse_batch_end(buffer: bytes, at: int, epoch: bytes) -> BatchEnd | None:
    """Return the BatchEnd at `at`, or None when it is not one of this epoch, or damaged."""
    if len(buffer) - at < BATCH_END_BYTES or buffer[at : at + 22] != _OPENING:
        return None
    (stored,) = U64.unpack_from(buffer, at + _CHECKSUM_AT)
    if stored != _xxh3(buffer[at + LEN_BYTES : at + _CHECKSUM_AT]):
        return None
    end = BatchEnd._make(_LAYOUT.unpack_from(buffer, at + HEADER_BYTES))
    return end if end.epoch == epoch else None
