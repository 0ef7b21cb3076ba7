"""Large request bodies in memory that two processes share.

The body of an append that another worker owns is written to an unnamed memory file as it arrives. Its owner
maps the same pages and decodes from there, so the body exists once, also while the receiving worker keeps it
for a retry.

M1  The file is written before it is announced and never changes afterwards, so a mapping of it stays valid.
M2  The receiving worker keeps its descriptor until the call has its answer, and the owner opens it through
    `/proc` within that time. Number, inode and size must all agree, so a reused pid is noticed.
M3  The receiving worker never maps a body that it only passes on.
"""

from __future__ import annotations

import io
import logging
import mmap
import os
import struct
from collections.abc import Iterator
from typing import Final, cast

logger = logging.getLogger("shared.runtime.body_memory")

# A smaller body costs less to copy than to map.
SHARED_BYTES_MIN: Final = 2 << 20
# A mapped body is examined in blocks of this size.
BLOCK_BYTES: Final = 256 << 10

_TICKET: Final = struct.Struct("<IIQQ")
"""Process id, descriptor, inode and size."""


class SharedBody:
    """A body in an unnamed memory file of this process."""

    __slots__ = ("_fd", "_size")

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self._size = size

    def __del__(self) -> None:
        os.close(self._fd)

    def __len__(self) -> int:
        return self._size

    def ticket(self) -> bytes:
        """Return the ticket with which another process of the same user opens the body."""
        return _TICKET.pack(os.getpid(), self._fd, os.fstat(self._fd).st_ino, self._size)

    def content(self) -> bytes:
        """Return a copy of the body."""
        return os.pread(self._fd, self._size, 0)

    def mapped(self) -> bytes:
        """Return the body without a copy."""
        return _map(self._fd, self._size)


class MappedBody(mmap.mmap):
    """A mapped body, with the methods of `bytes` that the decoding of an append uses."""

    def isascii(self) -> bool:
        return all(block.isascii() for block in self._blocks())

    def count(self, byte: bytes) -> int:
        """Count a single byte."""
        assert len(byte) == 1
        return sum(block.count(byte) for block in self._blocks())

    def __contains__(self, pattern: object) -> bool:
        assert isinstance(pattern, int | bytes)
        overlap = len(pattern) - 1 if isinstance(pattern, bytes) else 0
        return any(pattern in block for block in self._blocks(overlap))

    def _blocks(self, overlap: int = 0) -> Iterator[bytes]:
        for at in range(0, len(self), BLOCK_BYTES):
            yield self[at : at + BLOCK_BYTES + overlap]


class BodyBuffer:
    """The bytes of a body as they arrive, in a memory file once they are many."""

    def __init__(self) -> None:
        self._small = io.BytesIO()
        self._fd: int | None = None
        self._size = 0
        self._is_shareable = True

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)

    def tell(self) -> int:
        return self._size

    def write(self, data: bytes) -> None:
        self._size += len(data)
        if self._fd is None:
            self._small.write(data)
            if self._size >= SHARED_BYTES_MIN and self._is_shareable:
                self._move()
        else:
            _write_all(self._fd, data)

    def finish(self) -> bytes | SharedBody:
        if self._fd is None:
            return self._small.getvalue()
        fd, self._fd = self._fd, None
        return SharedBody(fd, self._size)

    def _move(self) -> None:
        try:
            self._fd = os.memfd_create("topicsd-body", os.MFD_CLOEXEC)
        except OSError:
            # No descriptor is free, or the system has no memory files: the body crosses as a copy.
            self._is_shareable = False
            return
        _write_all(self._fd, self._small.getbuffer())
        self._small = io.BytesIO()


def open_body(ticket: bytes) -> bytes | None:
    """Map the body that another process announced; log why it cannot be opened and return None."""
    pid, fd, inode, size = _TICKET.unpack(ticket)
    try:
        with open(f"/proc/{pid}/fd/{fd}", "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if (status.st_ino, status.st_size) == (inode, size):
                return _map(file.fileno(), size)
            cause = "the descriptor is not the announced body"
    except OSError as error:
        cause = str(error)
    logger.error("link: shared body not opened, the next one is copied: %s  pid=%d fd=%d", cause, pid, fd)
    return None


def _map(fd: int, size: int) -> bytes:
    # Typed as `bytes`, which it replaces: only the decoding of appends receives one.
    return cast(bytes, MappedBody(fd, size, prot=mmap.PROT_READ))


def _write_all(fd: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
