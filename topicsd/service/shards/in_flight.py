"""The number of requests in flight per key, and its bound over all workers.

A request counts at the worker of its connection. Each worker keeps its counts on the board, where it is the
only writer, and adds up those of all workers. That costs no more than a local table, and no messages. When
requests arrive at the same time, the bound may be exceeded by as many requests as there are other workers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial

from shared.contract.api_keys import KEY_PLACES, ApiKey
from shared.contract.errors import Refusal, limit_reached


class InFlight:
    def __init__(self, bound: int, own: memoryview | None = None, others: Sequence[memoryview] = ()) -> None:
        """Set the bound; 0 means unlimited.

        Counts are indexed by the place of a key. Without a board they are local to this process.
        """
        self.bound = bound
        self._own = memoryview(array("Q", [0]) * KEY_PLACES) if own is None else own
        self._others = others

    def enter(self, key: ApiKey) -> Callable[[], None] | Refusal:
        """Count one more request of the key; return the callback for its answer, or a refusal."""
        place = key.place
        count = self._own[place]
        for counts in self._others:
            count += counts[place]
        if count >= self.bound:
            usage = f"this key has {count} requests in flight"
            return limit_reached("max_inflight_per_key", self.bound, usage)
        self._own[place] += 1
        return partial(self._leave, place)

    def _leave(self, place: int) -> None:
        self._own[place] -= 1
