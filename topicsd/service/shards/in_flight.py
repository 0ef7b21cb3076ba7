"""How many requests of each key are in flight, and the bound of it over all workers.

A request counts where its connection is. Each worker has its counts on the board, where it alone writes them,
and adds up those of all: that costs no more than a table of its own would, and nobody is asked. So the bound
may be passed by as many requests as there are other workers, when they come in one moment.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial

from shared.contract.api_keys import KEY_PLACES, Key
from shared.contract.errors import THROTTLED, Refusal


class InFlight:
    def __init__(self, bound: int, own: memoryview | None = None, others: Sequence[memoryview] = ()) -> None:
        """0 is no bound. The counts are by the places of keys; without a board they are this process's."""
        self.bound = bound
        self._own = memoryview(array("Q", [0]) * KEY_PLACES) if own is None else own
        self._others = others

    def enter(self, key: Key) -> Callable[[], None] | Refusal:
        """One more of this key; what is given back is called when it is answered."""
        place = key.place
        count = self._own[place]
        for counts in self._others:
            count += counts[place]
        if count >= self.bound:
            message = (
                f"{count} requests of this key are in progress, TOPICS_MAX_INFLIGHT_PER_KEY is {self.bound}"
            )
            detail: dict[str, object] = {"limit": "max_inflight_per_key", "max": self.bound}
            return Refusal(THROTTLED, message, detail, retry_after_ms=1000)
        self._own[place] += 1
        return partial(self._leave, place)

    def _leave(self, place: int) -> None:
        self._own[place] -= 1
