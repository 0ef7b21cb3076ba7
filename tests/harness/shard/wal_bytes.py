"""A WAL file built by hand, so that a test controls every byte, valid or not.

Promises: without arguments everything is consistent; each field of a BatchEnd can be overridden. The chain,
the ordinals and the offsets continue as the writer would continue them.
"""

from __future__ import annotations

from typing import Any

from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.layout import ShardPaths
from topicsd.log.batch_end import BatchEnd, chain_of, encode_batch_end
from topicsd.log.file_header import FileHeader, encode_file_header
from topicsd.log.frame import FrameType, encode_frame

EPOCH = b"epoch-of-a-file-"
INSTANCE = b"one-shard-------"


def append_frame(seq: int, payload: bytes = b"1", topic_id: int = 7, **fields: Any) -> bytes:
    return encode_frame(FrameType.APPEND, topic_id=topic_id, seq=seq, ts=1000, payload=payload, **fields)


class WalBytes:
    def __init__(
        self,
        first_ordinal: int = 1,
        chain_seed: int = 0,
        *,
        epoch: bytes = EPOCH,
        file_bytes: int = 4096,
        instance: bytes = INSTANCE,
        shard: int = 0,
    ) -> None:
        self.header = FileHeader(shard, instance, epoch, first_ordinal, chain_seed, file_bytes, ts=1)
        self.data = bytearray(encode_file_header(self.header))
        self.ordinal = first_ordinal
        self.chain = chain_seed
        self.batches: list[tuple[int, int]] = []
        """The begin and end of each batch, its BatchEnd included."""

    @property
    def end(self) -> int:
        return len(self.data)

    def batch(self, *frames: bytes, **fields: Any) -> tuple[int, int]:
        """Add a batch, with fields of its BatchEnd replaced by `fields`; return its begin and end."""
        offset, whole = len(self.data), b"".join(frames)
        end = BatchEnd(
            epoch=self.header.epoch,
            ordinal=self.ordinal + len(frames),
            offset=offset,
            length=len(whole),
            chain=chain_of(whole, self.chain),
            synced=0,
        )._replace(**fields)
        self.data += whole + encode_batch_end(end, ts=2)
        self.ordinal = end.ordinal + 1
        self.chain = end.chain
        self.batches.append((offset, len(self.data)))
        return self.batches[-1]

    def next_file(self, *, epoch: bytes = b"epoch-of-another", **changes: Any) -> WalBytes:
        """Return the file that continues where this one ends."""
        return WalBytes(self.ordinal, self.chain, epoch=epoch, **changes)

    def padded(self) -> bytes:
        """Return the bytes, zero-padded to the size that the writer preallocates."""
        return bytes(self.data).ljust(self.header.file_bytes, b"\0")

    def put(self, disk: MemoryDisk, paths: ShardPaths) -> str:
        """Write the file into a shard's directory under its name; return the path."""
        path = paths.wal_file(self.header.first_ordinal)
        disk.make_dirs(paths.wal)
        disk.make_dirs(paths.quarantine)
        disk.write_file(path, self.padded())
        return path
