"""The WAL files of a shard as one sequence of bytes, addressed by position.

A position is a byte's place in the whole log, over all files: the frames of one file follow those of the
file before without a gap, whatever was left unused at its end. So a batch has its positions before its file
is chosen, and an index of records is one integer per record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter

import msgspec

from topicsd.disk.fs import Fs
from topicsd.disk.layout import wal_name
from topicsd.log.file_header import FILE_HEADER_BYTES


class LogPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A boundary between two batches of the log, with everything needed to read from there."""

    file: int
    """The WAL file, by its first ordinal."""
    offset: int
    ordinal: int
    """Ordinal of the next frame."""
    chain: int
    """Chain of the batch before this place."""


_first_ordinal = attrgetter("first_ordinal")


class LogFile:
    """One open WAL file; a byte at `offset` in it has the position `base + offset`."""

    __slots__ = ("base", "fd", "file_epoch", "first_ordinal", "size_bytes")

    def __init__(self, fd: int, first_ordinal: int, base: int, epoch: bytes, size_bytes: int) -> None:
        self.fd = fd
        self.first_ordinal = first_ordinal
        self.base = base
        self.file_epoch = epoch
        self.size_bytes = size_bytes


class LogFiles:
    """The open WAL files of a shard, in order, with reads by position."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._files: list[LogFile] = []
        self._starts: list[int] = []

    def add(self, fd: int, first_ordinal: int, start: int, epoch: bytes, size_bytes: int) -> LogFile:
        """Add the next file; `start` is the position of the first byte after its header."""
        assert not self._starts or start >= self._starts[-1]
        file = LogFile(fd, first_ordinal, start - FILE_HEADER_BYTES, epoch, size_bytes)
        self._files.append(file)
        self._starts.append(start)
        return file

    @property
    def count(self) -> int:
        return len(self._files)

    def drop_last(self) -> None:
        """Remove and close the file that was added last; it holds no batch."""
        self._starts.pop()
        self._fs.close(self._files.pop().fd)

    def drop_before(self, first_ordinal: int) -> None:
        """Close the files before this one; no position in them is in use."""
        count = 0
        while count < len(self._files) - 1 and self._files[count].first_ordinal < first_ordinal:
            self._fs.close(self._files[count].fd)
            count += 1
        del self._files[:count]
        del self._starts[:count]

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from position `start` to `end`; fewer when a file is too short."""
        chunks = []
        while start < end:
            index = bisect_right(self._starts, start) - 1
            # A file without a frame shares its start with the next file; the last of them has the bytes.
            stop = self._starts[index + 1] if index + 1 < len(self._starts) else end
            file = self._files[index]
            chunk = self._fs.pread(file.fd, min(stop, end) - start, start - file.base)
            chunks.append(chunk)
            if len(chunk) < min(stop, end) - start:
                break
            start += len(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def place_of(self, position: int) -> tuple[str, int]:
        """Return the file name and the offset of a position, for messages."""
        file = self.file_of(position)
        return wal_name(file.first_ordinal), position - file.base

    def file_of(self, position: int) -> LogFile:
        return self._files[bisect_right(self._starts, position) - 1]

    def position_of(self, first_ordinal: int, offset: int) -> int | None:
        """Return the position of a byte, or None when no file begins with this ordinal."""
        at = bisect_left(self._files, first_ordinal, key=_first_ordinal)
        if at == len(self._files) or self._files[at].first_ordinal != first_ordinal:
            return None
        return self._files[at].base + offset

    def clear(self) -> None:
        """Forget the files without closing them; the caller closes them."""

        self._files.clear()
        self._starts.clear()

    def close(self) -> None:
        for file in self._files:
            self._fs.close(file.fd)
        self.clear()
