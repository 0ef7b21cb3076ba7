"""The WAL files of a shard as one line of bytes, addressed by position.

A position is a byte's place in the whole log, over all files: the frames of one file follow those of the
file before without a hole, whatever was left unused at its end. So a batch has its positions before it
is known which file will take it, and an index of records is one integer a record.

A boundary between two batches of the log, with all that it takes to read on from there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter

import msgspec

from topicsd.disk.fs import Fs
from topicsd.disk.layout import wal_name
from topicsd.log.file_header import FILE_HEADER_BYTES


class LogPlace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    file: int
    """The WAL file, by its first ordinal."""
    offset: int
    ordinal: int
    """Of the next frame."""
    chain: int
    """Of the batch in front of it."""


_first_ordinal = attrgetter("first_ordinal")


class LogFile:
    """One open WAL file. A byte at `offset` in it has the position `base + offset`."""

    __slots__ = ("base", "epoch", "fd", "first_ordinal", "size_bytes")

    def __init__(self, fd: int, first_ordinal: int, base: int, epoch: bytes, size_bytes: int) -> None:
        self.fd = fd
        self.first_ordinal = first_ordinal
        self.base = base
        self.epoch = epoch
        self.size_bytes = size_bytes


class LogFiles:
    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._files: list[LogFile] = []
        self._starts: list[int] = []

    def add(self, fd: int, first_ordinal: int, start: int, epoch: bytes, size_bytes: int) -> LogFile:
        """Take in the next file; `start` is the position of the first byte behind its header."""
        assert not self._starts or start >= self._starts[-1]
        file = LogFile(fd, first_ordinal, start - FILE_HEADER_BYTES, epoch, size_bytes)
        self._files.append(file)
        self._starts.append(start)
        return file

    @property
    def count(self) -> int:
        return len(self._files)

    def drop_last(self) -> None:
        """Take back the file that was added last; nothing was written to it."""
        self._starts.pop()
        self._fs.close(self._files.pop().fd)

    def drop_before(self, first_ordinal: int) -> None:
        """Let go of the files in front of this one; nobody has a position in them."""
        count = 0
        while count < len(self._files) - 1 and self._files[count].first_ordinal < first_ordinal:
            self._fs.close(self._files[count].fd)
            count += 1
        del self._files[:count]
        del self._starts[:count]

    def read(self, start: int, end: int) -> bytes:
        """The bytes of the positions from `start` up to `end`; fewer when a file is shorter than that."""
        pieces = []
        while start < end:
            index = bisect_right(self._starts, start) - 1
            # Files without a frame in them share their start with the next; the last of them has the bytes.
            stop = self._starts[index + 1] if index + 1 < len(self._starts) else end
            file = self._files[index]
            piece = self._fs.pread(file.fd, min(stop, end) - start, start - file.base)
            pieces.append(piece)
            if len(piece) < min(stop, end) - start:
                break
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def place_of(self, position: int) -> tuple[str, int]:
        """The file and the offset in it, for a person to look at."""
        file = self.file_of(position)
        return wal_name(file.first_ordinal), position - file.base

    def file_of(self, position: int) -> LogFile:
        return self._files[bisect_right(self._starts, position) - 1]

    def position_of(self, first_ordinal: int, offset: int) -> int | None:
        """Of a byte of the file that begins with this ordinal; None when that is not one of these."""
        at = bisect_left(self._files, first_ordinal, key=_first_ordinal)
        if at == len(self._files) or self._files[at].first_ordinal != first_ordinal:
            return None
        return self._files[at].base + offset

    def clear(self) -> None:
        """Forget the files, which somebody else closes."""
        self._files.clear()
        self._starts.clear()

    def close(self) -> None:
        for file in self._files:
            self._fs.close(file.fd)
        self.clear()
