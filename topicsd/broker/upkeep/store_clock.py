"""The clock of the store, which the clock of a node has to agree with when the catalog has none.

A key-value catalog has the times of the nodes. A compactor whose clock is ahead would remove records before
their time, and let the catalog forget append ids too early. So it compares its clock with that of the store,
which is the same for all nodes, and does nothing while they differ.

The store is asked once an hour. In between its time is that of the monotonic clock, so a check costs nothing
and finds a clock that was set.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Final

from shared.runtime.clock import Clock
from shared.runtime.retries import Retries
from topicsd.catalog.catalog import CatalogRefused
from topicsd.store.create_object import create_object, repeat_request
from topicsd.store.object_store import ObjectStore
from topicsd.store.probe import PROBES

SKEW_MS: Final = 60_000
"""Below any TTL and REPEATED_MS, and above the time of a request with its repetitions."""
ASKED_SECONDS: Final = 3600.0


class ClockDiffers(CatalogRefused):
    """The clock of this node is not that of the store."""


def store_time(store: ObjectStore, retries: Callable[[], Retries]) -> int:
    """Return the present time by the clock of the store: that of an object that was just put."""
    key = f"{PROBES}/{secrets.token_hex(8)}/time"
    create_object(store, key, [b""], retries())
    now_ms = repeat_request(partial(store.info, key), retries()).modified_ms
    repeat_request(partial(store.delete, key), retries())
    return now_ms


class StoreClock:
    def __init__(self, clock: Clock, store: ObjectStore, retries: Callable[[], Retries]) -> None:
        self._clock = clock
        self._store = store
        self._retries = retries
        self._asked_at: float | None = None
        self._offset_ms = 0.0
        """What the time of the store was ahead of the monotonic clock."""

    def check(self, skew_ms: int = SKEW_MS) -> None:
        """Raise ClockDiffers when the clock of this node differs by more than `skew_ms`; blocks."""
        asked_at = self._asked_at
        if asked_at is None or self._clock.monotonic() - asked_at >= ASKED_SECONDS:
            self._ask()
        elif abs(self._ahead_ms()) > skew_ms:
            # Perhaps the clock of the store was wrong.
            self._ask()
        ahead_ms = self._ahead_ms()
        if abs(ahead_ms) > skew_ms:
            side = "ahead of" if ahead_ms > 0 else "behind"
            raise ClockDiffers(
                f"the clock of this machine is {abs(ahead_ms) / 1000:.0f} s {side} that of the store "
                f"{self._store.url}, and records would be removed at a wrong time: correct the clock"
            )

    def _ask(self) -> None:
        now_ms = store_time(self._store, self._retries)
        self._asked_at = self._clock.monotonic()
        self._offset_ms = now_ms - self._asked_at * 1000

    def _ahead_ms(self) -> float:
        return self._clock.now_ms() - (self._clock.monotonic() * 1000 + self._offset_ms)
