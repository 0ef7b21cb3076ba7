"""The slices of blobs that a task reads, each object fetched once and some of them ahead.

Slices of one object that are near each other are fetched by one request. Objects are fetched in the order in
which the task needs them, several at a time: the time of a request is mostly waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final, NamedTuple

from topicsd.catalog.shared.shared_catalog import SharedExtent
from topicsd.store.object_fs import ObjectRead

THREADS: Final = 8
AHEAD_BYTES: Final = 32 << 20
# Slices of other topics that are fetched rather than making one more request.
GAP_BYTES: Final = 128 << 10
SPAN_BYTES: Final = 16 << 20


class FetchedSlice(NamedTuple):
    """Bytes that hold a slice from `at` to `end`, or up to their own end when the object is too short."""

    data: bytes
    at: int
    end: int

    @property
    def body(self) -> bytes:
        return self.data[self.at : self.end]


class _Span:
    """Bytes of one object that are fetched together."""

    __slots__ = ("end", "key", "start", "users", "waiting")

    def __init__(self, extent: SharedExtent) -> None:
        self.key = extent.key
        self.start, self.end = extent.byte_offset, extent.byte_offset + extent.byte_length
        self.users = 0
        self.waiting: Future[bytes] | None = None

    def takes(self, extent: SharedExtent) -> bool:
        """Widen the span by an extent that begins after its start; return whether it is near enough."""
        end = max(self.end, extent.byte_offset + extent.byte_length)
        if extent.byte_offset > self.end + GAP_BYTES or end - self.start > SPAN_BYTES:
            return False
        self.end = end
        return True


class SliceBytes:
    def __init__(self, stack: ExitStack, read: ObjectRead, extents: Sequence[SharedExtent]) -> None:
        """Prepare to fetch extents, which `get` gets in this order; the stack ends what is on its way."""
        self._read = read
        self._spans = _spans(extents)
        for extent in extents:
            self._spans[_place(extent)].users += 1
        self._queue = deque(dict.fromkeys(self._spans[_place(extent)] for extent in extents))
        self._ahead_bytes = 0
        self._pool = ThreadPoolExecutor(THREADS)
        stack.callback(self._pool.shutdown, wait=True, cancel_futures=True)

    def get(self, extent: SharedExtent) -> FetchedSlice:
        """Return the bytes of an extent; raise FileNotFoundError when the object is missing."""
        span = self._spans[_place(extent)]
        while span.waiting is None:
            self._fetch()
        try:
            data = span.waiting.result()
        finally:
            self.skip(extent)
        at = extent.byte_offset - span.start
        return FetchedSlice(data, at, min(at + extent.byte_length, len(data)))

    def skip(self, extent: SharedExtent) -> None:
        """Count an extent as used; the bytes of a span are dropped with its last one."""
        span = self._spans[_place(extent)]
        span.users -= 1
        if not span.users:
            if span.waiting is not None:
                span.waiting.cancel()
                self._ahead_bytes -= span.end - span.start
            # Drops the bytes, too.
            span.waiting = None
        while self._queue and self._ahead_bytes < AHEAD_BYTES:
            self._fetch()

    def _fetch(self) -> None:
        span = self._queue.popleft()
        if span.users:
            self._ahead_bytes += span.end - span.start
            span.waiting = self._pool.submit(self._read, span.key, span.start, span.end - span.start)


def _place(extent: SharedExtent) -> tuple[str, int]:
    return extent.key, extent.byte_offset


def _spans(extents: Sequence[SharedExtent]) -> dict[tuple[str, int], _Span]:
    """Return the span of each extent by its place."""
    spans: dict[tuple[str, int], _Span] = {}
    last: _Span | None = None
    for extent in sorted(extents, key=_place):
        if last is None or last.key != extent.key or not last.takes(extent):
            last = _Span(extent)
        spans[_place(extent)] = last
    return spans
