"""How many requests of each key are in flight on the connections of this worker, and the bound of it.

Must not know: what a request asks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from shared.errors import THROTTLED, Refusal


class InFlight:
    def __init__(self, bound: int) -> None:
        """0 is no bound."""
        self.bound = bound
        self._counts: dict[str, int] = {}

    def enter(self, key_id: str) -> Callable[[], None] | Refusal:
        """One more of this key; what is given back is called when it is answered."""
        count = self._counts.get(key_id, 0)
        if count >= self.bound:
            message = f"{count} requests of this key are in flight already"
            detail: dict[str, object] = {"limit": "max_inflight_per_key", "max": self.bound}
            return Refusal(THROTTLED, message, detail, retry_after_ms=1000)
        self._counts[key_id] = count + 1
        return partial(self._leave, key_id)

    def _leave(self, key_id: str) -> None:
        count = self._counts[key_id] - 1
        if count:
            self._counts[key_id] = count
        else:
            del self._counts[key_id]
