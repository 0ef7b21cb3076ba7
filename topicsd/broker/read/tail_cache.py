"""The tail cache: the newest committed records of topics in memory, as the bytes of their blobs.

T1  It holds committed records only, put there by this broker's commits and by its reads near the head (R1).
T2  It holds at most its bound: the chunks that came first leave first, of whichever topic they are.
T3  It may have gaps, where other brokers committed: a reader that finds no chunk asks the catalog.
T4  A chunk belongs to an incarnation. Chunks of another one are never returned, and are dropped when seen.
T5  The newest chunks that this process has written keep their texts, too, which count as bytes of the bound:
    what follows a topic closely is rendered without a look at the frames.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import Final

from topicsd.broker.frames_v1 import Rebase
from topicsd.log.frame import CHECKSUM_BYTES, HEADER_BYTES, LEN_BYTES, U32

CHUNK_OVERHEAD: Final = 300
FRAME_BYTES_MIN: Final = HEADER_BYTES + CHECKSUM_BYTES
TEXTS_SHARE: Final = 8
"""Texts may have this part of the bound."""


class TailChunk:
    """Records of one topic that follow each other, as frames."""

    __slots__ = ("_starts", "body", "encoding", "is_dropped", "key", "name", "plain_count", "rebase", "texts")

    def __init__(self, name: str, rebase: Rebase, body: bytes, encoding: str, key: str = "") -> None:
        self.name = name
        self.rebase = rebase
        self.body = body
        self.encoding = encoding
        self.key = key
        """The object that the records were read from; empty for those that this broker has written."""
        self.is_dropped = False
        self.plain_count = 0
        """So many frames, from the first one on, are known to be intact and to have nothing but JSON."""
        self.texts: list[bytes] | None = None
        """The records, if all are JSON strings and nothing else, and the chunk is new (T5)."""
        self._starts = array("I", (0,))

    @property
    def count(self) -> int:
        return self.rebase.last_seq - self.rebase.first_seq + 1

    def frame_starts(self, count: int) -> array[int]:
        """Return the offsets of the first `count` frames and of what follows them; fewer after damage.

        They are found once, from one frame to the next by its length, as far as readers have come.
        """
        if self.texts is not None and len(self._starts) == 1:
            sizes = [len(text) + FRAME_BYTES_MIN for text in self.texts]
            self._starts = array("I", accumulate(sizes, initial=0))
        starts, body, unpack = self._starts, self.body, U32.unpack_from
        at, end = starts[-1], len(body)
        for _ in range(len(starts), count + 1):
            if at >= end - LEN_BYTES:
                break
            at += LEN_BYTES + unpack(body, at)[0]
            if at > end:
                break
            starts.append(at)
        return starts

    @property
    def size_bytes(self) -> int:
        return len(self.body) + CHUNK_OVERHEAD


class _Tail:
    """The chunks of one topic, by their first seqs."""

    __slots__ = ("chunks", "first_seqs", "incarnation")

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.chunks: list[TailChunk] = []
        self.first_seqs: list[int] = []


class TailCache:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._tails: dict[str, _Tail] = {}
        self._by_age: deque[TailChunk] = deque()
        self._dropped = 0
        """How many of them were dropped; never more than half."""
        self._with_texts = 0
        """So many of them, the newest ones, may have texts."""
        self._texts_bytes = 0
        self.size_bytes = 0
        self.hits = self.misses = 0

    def find(self, name: str, incarnation: int, seq: int) -> TailChunk | None:
        """Return the chunk that holds `seq`."""
        tail = self._tails.get(name)
        if tail is not None and tail.incarnation == incarnation:
            at = bisect_right(tail.first_seqs, seq) - 1
            if at >= 0 and tail.chunks[at].rebase.last_seq >= seq:
                self.hits += 1
                return tail.chunks[at]
        self.misses += 1
        return None

    def add(self, chunk: TailChunk) -> None:
        """Add committed records; those that are there already change nothing."""
        name, rebase = chunk.name, chunk.rebase
        tail = self._tails.get(name)
        if tail is None or tail.incarnation != rebase.incarnation:
            self.drop(name)
            tail = self._tails[name] = _Tail(rebase.incarnation)
        at = bisect_right(tail.first_seqs, rebase.first_seq)
        if at and tail.chunks[at - 1].rebase.last_seq >= rebase.first_seq:
            return
        tail.chunks.insert(at, chunk)
        tail.first_seqs.insert(at, rebase.first_seq)
        self._by_age.append(chunk)
        self.size_bytes += chunk.size_bytes
        self._with_texts += 1
        if chunk.texts is not None:
            self._texts_bytes += chunk.size_bytes
        while self._texts_bytes * TEXTS_SHARE > self._bytes_max:
            self._drop_texts(self._by_age[-self._with_texts])
            self._with_texts -= 1
        while self.size_bytes + self._texts_bytes > self._bytes_max:
            self._evict(self._by_age.popleft())
        self._with_texts = min(self._with_texts, len(self._by_age))

    def _drop_texts(self, chunk: TailChunk) -> None:
        if chunk.texts is not None:
            self._texts_bytes -= chunk.size_bytes
            chunk.texts = None

    def _evict(self, chunk: TailChunk) -> None:
        if chunk.is_dropped:
            self._dropped -= 1
            return
        self._drop_texts(chunk)
        self.size_bytes -= chunk.size_bytes
        tail = self._tails[chunk.name]
        at = bisect_right(tail.first_seqs, chunk.rebase.first_seq) - 1
        assert tail.chunks[at] is chunk
        del tail.chunks[at], tail.first_seqs[at]
        if not tail.chunks:
            del self._tails[chunk.name]

    def drop(self, name: str) -> None:
        """Drop all records of a topic: it was deleted, or another one has its name."""
        tail = self._tails.pop(name, None)
        if tail is None:
            return
        for chunk in tail.chunks:
            self._drop_texts(chunk)
            self.size_bytes -= chunk.size_bytes
            chunk.is_dropped = True
            # It stays in the list of ages for a while.
            chunk.body = b""
        self._dropped += len(tail.chunks)
        if 2 * self._dropped > len(self._by_age):
            self._by_age = deque(one for one in self._by_age if not one.is_dropped)
            self._with_texts = min(self._with_texts, len(self._by_age))
            self._dropped = 0
