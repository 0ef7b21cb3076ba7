"""The number of open streams, in total and per key, and the check of their bounds.

The counting process assigns each stream to a holder, the process that serves it. The streams of a holder end
when it dies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Final

IN_ALL: Final = "max_sse_connections"
PER_KEY: Final = "max_sse_connections_per_key"


class StreamCount:
    def __init__(self, bound: int, bound_per_key: int) -> None:
        """Set the bounds; 0 means unlimited."""
        self.bounds = {IN_ALL: bound, PER_KEY: bound_per_key}
        self._held: dict[int, Counter[str]] = {}

    def enter(self, holder: int, key_id: str) -> str:
        """Count one more stream, unless a bound is reached; return the name of that bound, or "".

        `key_id` is empty when there are no keys.
        """
        limit = self._reached(key_id)
        if not limit:
            self._held.setdefault(holder, Counter())[key_id] += 1
        return limit

    def leave(self, holder: int, key_id: str) -> None:
        """Count one stream less; do nothing for a holder that was removed."""
        held = self._held.get(holder)
        if held is not None:
            held[key_id] -= 1
            assert held[key_id] >= 0
            if not held[key_id]:
                del held[key_id]

    def keep(self, holders: Container[int]) -> None:
        """Remove every holder that is not in `holders`."""
        for holder in list(self._held):
            if holder not in holders:
                del self._held[holder]

    def _reached(self, key_id: str) -> str:
        in_all, per_key = self.bounds[IN_ALL], self.bounds[PER_KEY]
        if in_all and sum(held.total() for held in self._held.values()) >= in_all:
            return IN_ALL
        if per_key and key_id and sum(held[key_id] for held in self._held.values()) >= per_key:
            return PER_KEY
        return ""
