"""The tail cache: the newest committed records of topics in memory.

T1  It holds committed records only, put there by this broker's commits and by its reads near the head (R1).
T2  It holds at most its bound: the chunks that came first leave first, of whichever topic they are.
T3  It may have gaps, where other brokers committed: a reader that finds no chunk asks the catalog.
T4  A chunk belongs to an incarnation. Chunks of another one are never returned, and are dropped when seen.
T5  A chunk that this process has written as texts keeps those, and no frames: they take the same memory, and
    `/consume` renders them as they are. Frames are made from them again when a reader needs some.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import Final

from topicsd.broker.frames_v1 import FRAMES_V1, Rebase, Texts, encode_frames
from topicsd.log.frame import CHECKSUM_BYTES, HEADER_BYTES, LEN_BYTES, U32

CHUNK_OVERHEAD: Final = 300
FRAME_BYTES_MIN: Final = HEADER_BYTES + CHECKSUM_BYTES
TEXT_OVERHEAD: Final = 10
"""How much larger a text in memory is than its frame, at most."""


class TailChunk:
    """Records of one topic that follow each other, as frames or as texts (T5)."""

    __slots__ = (
        "_body",
        "_starts",
        "byte_count",
        "encoding",
        "is_dropped",
        "key",
        "name",
        "plain_count",
        "rebase",
        "texts",
        "ts",
    )

    def __init__(self, name: str, rebase: Rebase, body: bytes, encoding: str, key: str = "") -> None:
        self.name = name
        self.rebase = rebase
        self._body = body
        self.byte_count = len(body)
        """The bytes of the frames."""
        self.encoding = encoding
        self.key = key
        """The object that the records were read from; empty for those that this broker has written."""
        self.is_dropped = False
        self.plain_count = 0
        """So many frames, from the first one on, are known to be intact and to have nothing but JSON."""
        self.texts: Texts | None = None
        self.ts = 0
        """Of all texts."""
        self._starts = array("I", (0,))

    @classmethod
    def of_texts(cls, name: str, rebase: Rebase, texts: Texts, ts: int, byte_count: int) -> TailChunk:
        """Return a chunk of texts that were written at `ts`, with frames of `byte_count`."""
        chunk = cls(name, rebase, b"", FRAMES_V1)
        chunk.texts, chunk.ts, chunk.byte_count = texts, ts, byte_count
        chunk.plain_count = len(texts)
        return chunk

    @property
    def body(self) -> bytes:
        """The frames; those of a chunk of texts are made each time."""
        return self._body if self.texts is None else self.frames_of(0, self.count)._body

    def frames_of(self, low: int, high: int) -> TailChunk:
        """Return some of the texts as a chunk of frames, from the one at `low` up to `high`."""
        assert self.texts is not None
        first_seq, incarnation = self.rebase.first_seq, self.rebase.incarnation
        body = encode_frames(Texts(self.texts[low:high]), incarnation, low + 1, self.ts)
        rebase = Rebase(incarnation, first_seq + low, first_seq + high - 1)
        return TailChunk(self.name, rebase, body, FRAMES_V1)

    @property
    def count(self) -> int:
        return self.rebase.last_seq - self.rebase.first_seq + 1

    def frame_starts(self, count: int) -> array[int]:
        """Return the offsets of the first `count` frames and of what follows them; fewer after damage.

        They are found once, from one frame to the next by its length, as far as readers have come.
        """
        if self.texts is not None:
            if len(self._starts) == 1:
                sizes = [len(text) + FRAME_BYTES_MIN for text in self.texts]
                self._starts = array("I", accumulate(sizes, initial=0))
            return self._starts
        starts, body, unpack = self._starts, self._body, U32.unpack_from
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
        texts_overhead = 0 if self.texts is None else TEXT_OVERHEAD * self.count
        return self.byte_count + texts_overhead + CHUNK_OVERHEAD

    def drop(self) -> None:
        """Free the records of a chunk that is in no tail any more."""
        self.is_dropped = True
        self._body = b""
        self.texts = None


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
        while self.size_bytes > self._bytes_max:
            self._evict(self._by_age.popleft())

    def _evict(self, chunk: TailChunk) -> None:
        if chunk.is_dropped:
            self._dropped -= 1
            return
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
            self.size_bytes -= chunk.size_bytes
            # It stays in the list of ages for a while.
            chunk.drop()
        self._dropped += len(tail.chunks)
        if 2 * self._dropped > len(self._by_age):
            self._by_age = deque(one for one in self._by_age if not one.is_dropped)
            self._dropped = 0
