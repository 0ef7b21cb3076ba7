"""The producers of a topic: the last write of each, with the producer's own seq and the answer.

Unlike idempotency keys, producers have no window: a producer that repeats its last write after a week gets
the answer of the first time. A full table therefore refuses a new producer, unless a known one was silent for
`KEPT_MS`, which is then dropped. Replay decides the same, since both times are in the log.

All functions are pure: they take the time and read no clock.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

KEPT_MS: Final = 7 * 24 * 3_600_000
PRODUCERS: Final = "producers"
"""The name of the section in a topic of a snapshot."""


class ProducerWrite(NamedTuple):
    """The last write of a producer."""

    producer_seq: int
    first_seq: int
    records_count: int
    used_ms: int
    moved: tuple[int, ...] = ()
    """The seqs in the source, for a move of several records (P4 of `producer_write.py`)."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, ProducerWrite]).decode


class Producers:
    """The last write of each producer of one topic."""

    __slots__ = ("_known",)

    def __init__(self, known: dict[str, ProducerWrite] | None = None) -> None:
        self._known = known or {}
        """The last write by producer, the producer that was silent the longest first."""

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, producer: str) -> bool:
        return producer in self._known

    def find(self, producer: str) -> ProducerWrite | None:
        return self._known.get(producer)

    def has_room(self, count_max: int, new_count: int, now_ms: int) -> bool:
        """Return whether there is room for one more producer besides `new_count` pending new ones."""
        if not count_max or len(self._known) + new_count < count_max:
            return True
        # Enough silent producers must be droppable for the pending new ones as well.
        for number, one in enumerate(self._known.values()):
            if now_ms - one.used_ms <= KEPT_MS:
                return False
            if number >= len(self._known) + new_count - count_max:
                return True
        return False

    def store(self, producer: str, write: ProducerWrite, count_max: int) -> None:
        """Store a published write as the last one of its producer; replay calls this too."""
        is_new = self._known.pop(producer, None) is None
        while is_new and count_max and len(self._known) >= count_max:
            oldest = next(iter(self._known))
            if write.used_ms - self._known[oldest].used_ms <= KEPT_MS:
                break
            del self._known[oldest]
        self._known[producer] = write

    def section(self) -> dict[str, bytes]:
        """Return the snapshot section of the producers."""
        return {PRODUCERS: _encode(self._known)} if self._known else {}

    def section_up_to(self, last_seq: int) -> dict[str, bytes]:
        """Return the section of those producers whose last write ends at `last_seq` or before."""
        known = {
            producer: write
            for producer, write in self._known.items()
            if write.first_seq + write.records_count - 1 <= last_seq
        }
        return Producers(known).section()


def producers_of(sections: dict[str, bytes]) -> Producers | None:
    return Producers(_decode(sections[PRODUCERS])) if PRODUCERS in sections else None
