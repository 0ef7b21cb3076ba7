"""Idempotency keys: a write repeated within the window of its topic gets the answer of the first write.

Keys and records are stored as digests of 16 bytes, grouped in *generations* of a tenth of the window. To
expire keys, a whole generation is dropped, at no cost per key; the time of each key decides exactly when its
window ends. A full table refuses new keys: a key is never dropped early.

A generation may have a million keys. One dict of that size takes tens of milliseconds to grow, and as long to
free; so a generation has many small dicts, of which each later write frees two.

The window begins at the first use. The key of a pending write is kept with that write, not here.

Each key has the id of its topic, so that a bundle can take the keys of one topic along. Keys of snapshots
from before that column have the id 0: they belong to an unknown topic, and every bundle takes them.

All functions are pure: they take `now` and read no clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

DIGEST_BYTES = 16
GENERATIONS = 10
# The keys in one step of `columns`: about half a megabyte, well under a millisecond.
KEYS_A_STEP = 8192
# One dict for each value of the first byte of a digest.
PARTS = 256


class KeyedWrite(NamedTuple):
    """The write that used a key: a digest of its records, and their seqs."""

    records: bytes
    first_seq: int
    records_count: int


def key_digest(epoch: int, topic_id: int, key: str) -> bytes:
    """Return the digest of a key, which belongs to one epoch of one topic."""
    return xxhash.xxh3_128_digest(b"%d/%d/%b" % (topic_id, epoch, key.encode()))


class Generation:
    """The keys that were first used in one tenth of a window."""

    __slots__ = ("counts", "digests", "ends_ms", "first_seqs", "indexes", "records", "topic_ids", "used_ms")

    def __init__(self, ends_ms: int) -> None:
        self.ends_ms = ends_ms
        """The time from which first uses belong to the next generation."""
        self.indexes: list[dict[bytes, int]] = [{} for _ in range(PARTS)]
        self.digests = bytearray()
        self.records = bytearray()
        self.first_seqs = array("Q")
        self.counts = array("I")
        self.used_ms = array("Q")
        self.topic_ids = array("Q")

    def add(self, key: bytes, write: KeyedWrite, used_ms: int, topic_id: int) -> None:
        self.indexes[key[0]][key] = len(self.counts)
        self.digests += key
        self.records += write.records
        self.first_seqs.append(write.first_seq)
        self.counts.append(write.records_count)
        self.used_ms.append(used_ms)
        self.topic_ids.append(topic_id)

    def write_at(self, index: int) -> KeyedWrite:
        records = bytes(self.records[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES])
        return KeyedWrite(records, self.first_seqs[index], self.counts[index])


class KeyColumns(NamedTuple):
    """A part of a generation as columns; entry i of each column is of the same key."""

    window_ms: int
    number: int
    digests: bytes
    records: bytes
    first_seqs: bytes
    counts: bytes
    used_ms: bytes
    topic_ids: bytes = b""
    """Empty if the topics of all keys are unknown."""

    def of_topic(self, topic_id: int) -> KeyColumns | None:
        """Return the keys of one topic and those of unknown topics, or None if there are none."""
        topic_ids = array("Q", self.topic_ids)
        if not topic_ids:
            return self
        indexes = [index for index, one in enumerate(topic_ids) if one in (topic_id, 0)]
        return self._only(indexes) if indexes else None

    def up_to(self, last_seq: int) -> KeyColumns | None:
        """Return the keys of writes that end at `last_seq` or before, or None if there are none."""
        writes = zip(array("Q", self.first_seqs), array("I", self.counts), strict=True)
        indexes = [index for index, (first, count) in enumerate(writes) if first + count - 1 <= last_seq]
        return self._only(indexes) if indexes else None

    def _only(self, indexes: list[int]) -> KeyColumns:
        return self._replace(
            digests=_rows(self.digests, DIGEST_BYTES, indexes),
            records=_rows(self.records, DIGEST_BYTES, indexes),
            first_seqs=_rows(self.first_seqs, 8, indexes),
            counts=_rows(self.counts, 4, indexes),
            used_ms=_rows(self.used_ms, 8, indexes),
            topic_ids=_rows(self.topic_ids, 8, indexes) if self.topic_ids else b"",
        )


def _rows(column: bytes, size: int, indexes: list[int]) -> bytes:
    return b"".join([column[index * size : (index + 1) * size] for index in indexes])


class IdempotencyKeys:
    """All idempotency keys of a shard. Topics with the same window share generations."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._windows: dict[tuple[int, bool], dict[int, Generation]] = {}
        """Generations by window and by whether they survive the process, then by tenth of the window.

        Not a queue: clocks step, and the times of topics differ.
        """
        self._to_free: list[object] = []
        """Parts of dropped generations, to be freed."""
        self.count = 0

    def find(self, key: bytes, windows_ms: tuple[int, ...], now_ms: int) -> KeyedWrite | None:
        """Return the write that used the key within the topic's window, or None.

        `windows_ms` is the window of the topic, then its earlier windows, under which keys may be stored.
        """
        part = key[0]
        for window_ms in windows_ms:
            for survives in (True, False):
                for generation in reversed(self._windows.get((window_ms, survives), {}).values()):
                    index = generation.indexes[part].get(key)
                    if index is not None and now_ms - generation.used_ms[index] <= windows_ms[0]:
                        return generation.write_at(index)
        return None

    def has_room(self, now_ms: int, pending_count: int) -> bool:
        """Return whether there is room for one more key besides the keys of pending writes."""
        self._expire(now_ms)
        return not self._keys_max or self.count + pending_count < self._keys_max

    def add(
        self,
        key: bytes,
        write: KeyedWrite,
        window_ms: int,
        used_ms: int,
        topic_id: int,
        survives: bool = True,
    ) -> None:
        """Store the first use of a key; keys of ephemeral topics do not survive the process."""
        generations = self._windows.setdefault((window_ms, survives), {})
        tenth_ms = max(1, window_ms // GENERATIONS)
        number = used_ms // tenth_ms
        generation = generations.get(number)
        if generation is None:
            generation = generations[number] = Generation((number + 1) * tenth_ms)
        if key not in generation.indexes[key[0]]:  # A replay may repeat a key of the snapshot.
            generation.add(key, write, used_ms, topic_id)
            self.count += 1

    def columns(self) -> Iterator[KeyColumns]:
        """Yield all keys that survive the process, a part of a generation at a time.

        Keys may be added and dropped between two steps.
        """
        for (window_ms, survives), generations in list(self._windows.items()):
            for number, one in list(generations.items()) if survives else ():
                low = 0
                while low < len(one.counts):
                    high = min(low + KEYS_A_STEP, len(one.counts))
                    yield KeyColumns(
                        window_ms,
                        number,
                        bytes(one.digests[low * DIGEST_BYTES : high * DIGEST_BYTES]),
                        bytes(one.records[low * DIGEST_BYTES : high * DIGEST_BYTES]),
                        one.first_seqs[low:high].tobytes(),
                        one.counts[low:high].tobytes(),
                        one.used_ms[low:high].tobytes(),
                        one.topic_ids[low:high].tobytes(),
                    )
                    low = high

    def add_columns(self, columns: KeyColumns, now_ms: int) -> None:
        """Restore columns that `columns` yielded in an earlier run."""
        tenth_ms = max(1, columns.window_ms // GENERATIONS)
        ends_ms = (columns.number + 1) * tenth_ms
        if now_ms - ends_ms > columns.window_ms:
            return
        generations = self._windows.setdefault((columns.window_ms, True), {})
        generation = generations.setdefault(columns.number, Generation(ends_ms))
        digests, first_index = columns.digests, len(generation.counts)
        generation.digests += digests
        generation.records += columns.records
        generation.first_seqs.frombytes(columns.first_seqs)
        generation.counts.frombytes(columns.counts)
        generation.used_ms.frombytes(columns.used_ms)
        generation.topic_ids.frombytes(columns.topic_ids or bytes(len(columns.used_ms)))
        indexes = generation.indexes
        for index, at in enumerate(range(0, len(digests), DIGEST_BYTES), first_index):
            key = digests[at : at + DIGEST_BYTES]
            indexes[key[0]][key] = index
        self.count += len(generation.counts) - first_index

    def merge(self, columns: KeyColumns, now_ms: int) -> None:
        """Add keys of another shard; those that are known already stay as they are."""
        records, digests = columns.records, columns.digests
        rows = zip(
            array("Q", columns.first_seqs),
            array("I", columns.counts),
            array("Q", columns.used_ms),
            array("Q", columns.topic_ids or bytes(len(columns.used_ms))),
            strict=True,
        )
        for at, (first_seq, count, used_ms, topic_id) in zip(
            range(0, len(digests), DIGEST_BYTES), rows, strict=True
        ):
            if now_ms - used_ms <= columns.window_ms:
                write = KeyedWrite(records[at : at + DIGEST_BYTES], first_seq, count)
                self.add(digests[at : at + DIGEST_BYTES], write, columns.window_ms, used_ms, topic_id)

    def _expire(self, now_ms: int) -> None:
        # Two for each write are enough: no more than two parts are added for each write.
        del self._to_free[-2:]
        for (window_ms, survives), generations in list(self._windows.items()):
            # The youngest key of a generation was used before `ends_ms`.
            for number in [number for number, one in generations.items() if now_ms - one.ends_ms > window_ms]:
                generation = generations.pop(number)
                self.count -= len(generation.counts)
                self._to_free += filter(None, generation.indexes)
                self._to_free.append(
                    (generation.digests, generation.records, generation.first_seqs, generation.topic_ids)
                )
            if not generations:
                del self._windows[window_ms, survives]
