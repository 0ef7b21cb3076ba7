"""What a topic knows of its producers: of each the last write, under the producer's own seq, and its answer.

Unlike an idempotency key it has no window: a producer that sends its last write again after a week gets the
answer of the first time. So what is full refuses a new producer, and only one that was silent for
`KEPT_MS` gives way to it. Replay comes to the same, since both times stand in the log.

Pure: takes the time, knows no clock. Must not know: frames, requests.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

KEPT_MS: Final = 7 * 24 * 3_600_000
PRODUCERS: Final = "producers"
"""The section of a snapshot's topic."""


class Produced(NamedTuple):
    """The last write of a producer."""

    producer_seq: int
    first_seq: int
    records_count: int
    used_ms: int
    moved: tuple[int, ...] = ()
    """Of a move of several records (P4 of `producer_write.py`): their seqs where they came from."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Produced]).decode


class Producers:
    __slots__ = ("_known",)

    def __init__(self, known: dict[str, Produced] | None = None) -> None:
        self._known = known or {}
        """The one that was silent the longest first."""

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, producer: str) -> bool:
        return producer in self._known

    def find(self, producer: str) -> Produced | None:
        return self._known.get(producer)

    def has_room(self, count_max: int, coming: int, now_ms: int) -> bool:
        """Whether one more may come besides `coming` new ones whose first write is on its way."""
        if not count_max or len(self._known) + coming < count_max:
            return True
        # As many of them as are coming give way as well.
        for number, one in enumerate(self._known.values()):
            if now_ms - one.used_ms <= KEPT_MS:
                return False
            if number >= len(self._known) + coming - count_max:
                return True
        return False

    def keep(self, producer: str, write: Produced, count_max: int) -> None:
        """It was published; again in a replay."""
        is_new = self._known.pop(producer, None) is None
        while is_new and count_max and len(self._known) >= count_max:
            oldest = next(iter(self._known))
            if write.used_ms - self._known[oldest].used_ms <= KEPT_MS:
                break
            del self._known[oldest]
        self._known[producer] = write

    def section(self) -> dict[str, bytes]:
        """For a snapshot."""
        return {PRODUCERS: _encode(self._known)} if self._known else {}


def producers_of(sections: dict[str, bytes]) -> Producers | None:
    return Producers(_decode(sections[PRODUCERS])) if PRODUCERS in sections else None
