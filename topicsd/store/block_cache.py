"""A bounded cache of object blocks in memory, with read-ahead for sequential readers.

C1  Objects never change, so a block needs no check; a deleted object is forgotten by its key.
C2  A reader that asks for the block after its last one reads sequentially: the next request gets twice as
    many blocks as the one before, up to READ_AHEAD_BYTES, in one GET. Other reads get the blocks they need.
C3  Threads that need the same block wait for one GET. After a failure each of them tries for itself.
C4  The cache holds at most its bound, and what is being read at the moment.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from topicsd.store.object_store import ObjectStore

BLOCK_BYTES: Final = 256 << 10
READ_AHEAD_BYTES: Final = 8 << 20
_AHEAD_BLOCKS_MAX: Final = READ_AHEAD_BYTES // BLOCK_BYTES
SEQUENCES_MAX: Final = 1024

Block = tuple[str, int]


class BlockCache:
    """The cache of one store, for all threads of a process."""

    def __init__(self, store: ObjectStore, bytes_max: int) -> None:
        self._store = store
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Block, bytes] = OrderedDict()
        self._bytes = 0
        self._loading: dict[Block, threading.Event] = {}
        self._sequences: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """By key: the block that a sequential reader needs next, and the blocks of its last request."""
        self.hits = self.misses = 0

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def read(self, key: str, offset: int, size: int) -> bytes:
        """Read up to `size` bytes from `offset`; fewer only at the end of the object."""
        first, last = offset // BLOCK_BYTES, (offset + size - 1) // BLOCK_BYTES
        parts: list[bytes] = []
        number = first
        while number <= last:
            block = self._block(key, number, last)
            start = offset - number * BLOCK_BYTES if number == first else 0
            end = offset + size - number * BLOCK_BYTES if number == last else BLOCK_BYTES
            parts.append(block[start:end])
            if len(block) < BLOCK_BYTES:
                break
            number += 1
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _block(self, key: str, number: int, last: int) -> bytes:
        while True:
            with self._lock:
                block = self._blocks.get((key, number))
                if block is not None:
                    self._blocks.move_to_end((key, number))
                    self.hits += 1
                    return block
                loading = self._loading.get((key, number))
                if loading is None:
                    self.misses += 1
                    numbers = self._claim(key, number, last)
                    break
            loading.wait()
        return self._load(key, numbers)

    def _claim(self, key: str, number: int, last: int) -> range:
        """Return the blocks that this thread loads, at least `number`; the caller holds the lock."""
        expected, count = self._sequences.pop(key, (-1, 0))
        ahead = min(2 * count, _AHEAD_BLOCKS_MAX) if expected == number else 1
        end = number + max(ahead, min(last + 1 - number, _AHEAD_BLOCKS_MAX))
        for one in range(number, end):
            if (key, one) in self._loading or (key, one) in self._blocks:
                end = max(one, number + 1)
                break
        event = threading.Event()
        numbers = range(number, end)
        for one in numbers:
            self._loading[key, one] = event
        self._sequences[key] = (end, len(numbers))
        if len(self._sequences) > SEQUENCES_MAX:
            self._sequences.popitem(last=False)
        return numbers

    def _load(self, key: str, numbers: range) -> bytes:
        data: bytes | None = None
        try:
            data = self._store.read(key, numbers[0] * BLOCK_BYTES, len(numbers) * BLOCK_BYTES)
        finally:
            with self._lock:
                event = self._loading[key, numbers[0]]
                for index, number in enumerate(numbers):
                    del self._loading[key, number]
                    if data is not None:
                        self._add((key, number), data[index * BLOCK_BYTES : (index + 1) * BLOCK_BYTES])
            event.set()
        return data[:BLOCK_BYTES]

    def _add(self, block: Block, data: bytes) -> None:
        self._bytes += len(data) - len(self._blocks.pop(block, b""))
        self._blocks[block] = data
        while self._bytes > self._bytes_max and self._blocks:
            self._bytes -= len(self._blocks.popitem(last=False)[1])

    def forget(self, key: str) -> None:
        """Drop the blocks of an object that was deleted."""
        with self._lock:
            self._sequences.pop(key, None)
            for block in [block for block in self._blocks if block[0] == key]:
                self._bytes -= len(self._blocks.pop(block))
