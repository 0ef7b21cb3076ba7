"""Idempotency keys: a write that is sent again within the window gets the answer of the first.

Keys and records are known by digests of 16 bytes. They are kept by *generations* of a tenth of the window,
so that forgetting is dropping a whole generation and costs nothing a key; a key's own time says exactly
when its window ends. What is full refuses: a key is never forgotten early.

A generation may have a million keys. A table of that size takes tens of milliseconds to grow, and as many to
be freed: so it is many small ones, of which two are freed with each write to come.

The window counts from the first use. A key whose first write is on its way is not here but with that write.

Pure: takes `now`, knows no clock. Must not know: frames, files, answers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

DIGEST_BYTES = 16
GENERATIONS = 10
# What one step of `columns` gives: about half a megabyte, well under a millisecond.
KEYS_A_STEP = 8192
# By the first byte of a digest.
PARTS = 256


class KeyedWrite(NamedTuple):
    """What a key was used for."""

    records: bytes
    first_seq: int
    records_count: int


def key_digest(epoch: int, topic_id: int, key: str) -> bytes:
    """A key belongs to one incarnation of one topic."""
    return xxhash.xxh3_128_digest(b"%d/%d/%b" % (topic_id, epoch, key.encode()))


class Generation:
    """The keys that were first used in one tenth of a window."""

    __slots__ = ("counts", "digests", "ends_ms", "first_seqs", "places", "records", "used_ms")

    def __init__(self, ends_ms: int) -> None:
        self.ends_ms = ends_ms
        """First uses from here on go to the next generation."""
        self.places: list[dict[bytes, int]] = [{} for _ in range(PARTS)]
        self.digests = bytearray()
        self.records = bytearray()
        self.first_seqs = array("Q")
        self.counts = array("I")
        self.used_ms = array("Q")

    def add(self, key: bytes, write: KeyedWrite, used_ms: int) -> None:
        self.places[key[0]][key] = len(self.counts)
        self.digests += key
        self.records += write.records
        self.first_seqs.append(write.first_seq)
        self.counts.append(write.records_count)
        self.used_ms.append(used_ms)

    def write_at(self, place: int) -> KeyedWrite:
        records = bytes(self.records[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES])
        return KeyedWrite(records, self.first_seqs[place], self.counts[place])


class KeyColumns(NamedTuple):
    """A part of a generation as columns: entry i of each is of the same key."""

    window_ms: int
    number: int
    digests: bytes
    records: bytes
    first_seqs: bytes
    counts: bytes
    used_ms: bytes


class Dedupe:
    """All keys of the shard. Topics with one window share their generations."""

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._windows: dict[tuple[int, bool], dict[int, Generation]] = {}
        """By window and by whether it outlives the process, then by the tenth of the window. Not a queue:
        clocks step, and topics are not of one time."""
        self._leaving: list[object] = []
        """Parts of generations that are forgotten."""
        self.count = 0

    def find(self, key: bytes, windows_ms: tuple[int, ...], now_ms: int) -> KeyedWrite | None:
        """The write that used the key within the topic's window: the first of those that it has had."""
        part = key[0]
        for window_ms in windows_ms:
            for survives in (True, False):
                for generation in reversed(self._windows.get((window_ms, survives), {}).values()):
                    place = generation.places[part].get(key)
                    if place is not None and now_ms - generation.used_ms[place] <= windows_ms[0]:
                        return generation.write_at(place)
        return None

    def has_room(self, now_ms: int, pending_count: int) -> bool:
        """Whether one more key may come, besides those of writes on their way."""
        self._forget(now_ms)
        return not self._keys_max or self.count + pending_count < self._keys_max

    def add(self, key: bytes, write: KeyedWrite, window_ms: int, used_ms: int, survives: bool = True) -> None:
        """Note the first use of a key. Those of an ephemeral topic do not survive the process."""
        generations = self._windows.setdefault((window_ms, survives), {})
        tenth_ms = max(1, window_ms // GENERATIONS)
        number = used_ms // tenth_ms
        generation = generations.get(number)
        if generation is None:
            generation = generations[number] = Generation((number + 1) * tenth_ms)
        if key not in generation.places[key[0]]:  # A replay may come to what the snapshot has.
            generation.add(key, write, used_ms)
            self.count += 1

    def columns(self) -> Iterator[KeyColumns]:
        """All keys that survive, some of a generation at a time; others may be added and forgotten in
        between."""
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
                    )
                    low = high

    def add_columns(self, columns: KeyColumns, now_ms: int) -> None:
        """Take in what `columns` gave in an earlier run."""
        tenth_ms = max(1, columns.window_ms // GENERATIONS)
        ends_ms = (columns.number + 1) * tenth_ms
        if now_ms - ends_ms > columns.window_ms:
            return
        generations = self._windows.setdefault((columns.window_ms, True), {})
        generation = generations.setdefault(columns.number, Generation(ends_ms))
        digests, first_place = columns.digests, len(generation.counts)
        generation.digests += digests
        generation.records += columns.records
        generation.first_seqs.frombytes(columns.first_seqs)
        generation.counts.frombytes(columns.counts)
        generation.used_ms.frombytes(columns.used_ms)
        places = generation.places
        for place, at in enumerate(range(0, len(digests), DIGEST_BYTES), first_place):
            key = digests[at : at + DIGEST_BYTES]
            places[key[0]][key] = place
        self.count += len(generation.counts) - first_place

    def _forget(self, now_ms: int) -> None:
        # No more than two come for each write that there was.
        del self._leaving[-2:]
        for (window_ms, survives), generations in list(self._windows.items()):
            # The youngest key of a generation was used before its end.
            for number in [number for number, one in generations.items() if now_ms - one.ends_ms > window_ms]:
                generation = generations.pop(number)
                self.count -= len(generation.counts)
                self._leaving += filter(None, generation.places)
                self._leaving.append((generation.digests, generation.records, generation.first_seqs))
            if not generations:
                del self._windows[window_ms, survives]
