"""The batches of one WAL file, in order, with memory bounded by the largest batch.

A batch is found by the BatchEnd that closes it, and is returned only when that BatchEnd fits: its offset is
correct, its length reaches back to exactly the current offset, its ordinal continues the log, and its chain
covers the bytes and the batch before. Frame lengths are never used to find a batch. Where the next batch does
not fit, the reader stops; `survey` describes the bytes after that place, which decide between a torn tail and
damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from topicsd.disk.fs import Fs
from topicsd.log.batch_end import BATCH_END_BYTES, BatchEnd, chain_of, find_batch_end, parse_batch_end
from topicsd.log.file_header import FILE_HEADER_BYTES, FileHeader
from topicsd.log.files import LogPlace
from topicsd.log.frame import LEN_BYTES

WINDOW_BYTES = 4 << 20
_ZEROS = bytes(64 << 10)


class WalBatch(NamedTuple):
    """One batch: its frames are `buffer[start:end]`, and its BatchEnd follows them."""

    buffer: bytes
    start: int
    end: int
    offset: int
    """Offset of the first frame in the file."""
    first_ordinal: int
    frame_count: int
    closing: BatchEnd


class Survey(NamedTuple):
    """The content of a file after the place where its batches stop."""

    data_end: int
    """Offset after the last byte that is not zero; the place itself when all bytes are zero."""
    synced: int
    """Highest synced offset in an intact BatchEnd after the place."""


class WalBatchReader:
    """A reader at `offset`, with the ordinal and the chain that the next batch must continue."""

    def __init__(self, fs: Fs, fd: int, header: FileHeader, start: LogPlace | None = None) -> None:
        """Begin at `start`, a place in this file, or at the first batch."""
        self._fs = fs
        self._fd = fd
        self._epoch = header.epoch
        self.offset = start.offset if start else FILE_HEADER_BYTES
        self.ordinal = start.ordinal if start else header.first_ordinal
        self.chain = start.chain if start else header.chain_seed
        self._window = b""
        self._window_offset = self.offset

    def next(self) -> WalBatch | None:
        """Return the next batch, or None when no batch fits here."""
        at = self.offset - self._window_offset
        match = self._closing_in_window(at)
        if match is None:
            self._load(WINDOW_BYTES)
            at = 0
            # A frame length of zero is the end of the written part, whatever bytes follow.
            if self._window[:LEN_BYTES].count(0) == LEN_BYTES:
                return None
            match = self._closing_in_window(0)
            if match is None:
                size = self._size_beyond_window()
                if size is None:
                    return None
                self._load(size)
                match = self._closing_in_window(0)
                if match is None:
                    return None
        end, closing = match
        length = end - at
        if closing.ordinal < self.ordinal or closing.chain != chain_of(
            memoryview(self._window)[at:end], self.chain
        ):
            return None
        first, count = self.ordinal, closing.ordinal - self.ordinal
        batch = WalBatch(self._window, at, end, self.offset, first, count, closing)
        self.offset += length + BATCH_END_BYTES
        self.ordinal = closing.ordinal + 1
        self.chain = closing.chain
        return batch

    def _load(self, size: int) -> None:
        self._window = self._fs.pread(self._fd, size, self.offset)
        self._window_offset = self.offset

    def _closing_in_window(self, at: int) -> tuple[int, BatchEnd] | None:
        """Find the BatchEnd that closes the batch that begins at `at`; return its place and content.

        BatchEnds of other batches are skipped: a payload may hold a copy of an earlier one.
        """
        search_at = at
        while (candidate_at := find_batch_end(self._window, self._epoch, search_at)) >= 0:
            closing = parse_batch_end(self._window, candidate_at, self._epoch)
            if closing is not None and (closing.offset, closing.length) == (self.offset, candidate_at - at):
                return candidate_at, closing
            search_at = candidate_at + 1
        return None

    def _size_beyond_window(self) -> int | None:
        """Return the size with its BatchEnd of a batch here that is larger than a window, or None."""
        for place, closing in batch_ends(self._fs, self._fd, self._epoch, self.offset):
            if (closing.offset, closing.length) == (self.offset, place - self.offset):
                return closing.length + BATCH_END_BYTES
        return None


def survey(fs: Fs, fd: int, epoch: bytes, offset: int) -> Survey:
    """Scan the file after `offset` once, and search only windows that are not all zeros.

    Most of a preallocated file was never written.
    """
    data_end, synced = offset, 0
    for at, window in _windows(fs, fd, offset):
        if used := used_bytes(window):
            data_end = max(data_end, at + used)
            synced = max([synced, *(closing.synced for _, closing in _ends_in(window, at, epoch))])
    return Survey(data_end, synced)


def used_bytes(data: bytes) -> int:
    """Return the number of bytes up to and including the last one that is not zero.

    Most of a preallocated file is zeros, and comparing them is a hundred times faster than stripping them.
    """
    end = len(data)
    while end > 0:
        start = max(0, end - len(_ZEROS))
        if data[start:end] != _ZEROS[: end - start]:
            return start + len(data[start:end].rstrip(b"\0"))
        end = start
    return 0


def batch_ends(fs: Fs, fd: int, epoch: bytes, offset: int) -> Iterator[tuple[int, BatchEnd]]:
    """Iterate over the intact BatchEnds of the epoch at or after `offset`, with their offsets."""
    for at, window in _windows(fs, fd, offset):
        yield from _ends_in(window, at, epoch)


def _windows(fs: Fs, fd: int, offset: int) -> Iterator[tuple[int, bytes]]:
    """Read the file in windows that overlap by one BatchEnd, to miss none at a boundary."""
    at = offset
    while window := fs.pread(fd, WINDOW_BYTES + BATCH_END_BYTES, at):
        yield at, window
        at += WINDOW_BYTES


def _ends_in(window: bytes, at: int, epoch: bytes) -> Iterator[tuple[int, BatchEnd]]:
    search_at = 0
    while (candidate_at := find_batch_end(window, epoch, search_at)) >= 0:
        closing = parse_batch_end(window, candidate_at, epoch)
        if closing is not None and candidate_at < WINDOW_BYTES:
            yield at + candidate_at, closing
        search_at = candidate_at + 1
