"""The number of open streams, in total and per key, and the check of their bounds.

The counting process assigns each stream to a holder, the process that serves it. The streams of a holder end
when it dies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Final

BOUND: Final = "max_sse_connections"
BOUND_PER_KEY: Final = "max_sse_connections_per_key"


class StreamCount:
    def __init__(self, bound: int, bound_per_key: int) -> None:
        """Set the bounds; 0 means unlimited."""
        self.bounds = {BOUND: bound, BOUND_PER_KEY: bound_per_key}
        self._counts: dict[int, Counter[str]] = {}

    def enter(self, holder: int, key_id: str) -> str:
        """Count one more stream, unless a bound is reached; return the name of that bound, or "".

        `key_id` is empty when there are no keys.
        """
        limit = self._reached_bound(key_id)
        if not limit:
            self._counts.setdefault(holder, Counter())[key_id] += 1
        return limit

    def leave(self, holder: int, key_id: str) -> None:
        """Count one stream less; do nothing for a holder that was removed."""
        counts = self._counts.get(holder)
        if counts is not None:
            counts[key_id] -= 1
            assert counts[key_id] >= 0
            if not counts[key_id]:
                del counts[key_id]

    def keep(self, holders: Container[int]) -> None:
        """Remove every holder that is not in `holders`."""
        for holder in list(self._counts):
            if holder not in holders:
                del self._counts[holder]

    def _reached_bound(self, key_id: str) -> str:
        in_all, per_key = self.bounds[BOUND], self.bounds[BOUND_PER_KEY]
        if in_all and sum(counts.total() for counts in self._counts.values()) >= in_all:
            return BOUND
        if per_key and key_id and sum(counts[key_id] for counts in self._counts.values()) >= per_key:
            return BOUND_PER_KEY
        return ""
