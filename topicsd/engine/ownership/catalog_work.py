"""The topics of a shard for which the catalog has to be asked, and the thread's side of the requests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.catalog.catalog import (
    Catalog,
    CatalogExtraMissing,
    CatalogRefused,
    CatalogUnavailable,
    ChangeRefused,
    Fenced,
)
from topicsd.engine.ownership.owned import needs_raise, watch_mark
from topicsd.engine.topic import Topic

CatalogCall = Callable[[Catalog], Any]
Outcome = Any
"""What a verb returns, or the `Fenced` or `ChangeRefused` that it raises."""


RetryWait = Callable[[float], object]
"""Waits for so many seconds; returns True when the process ends, and nothing is to be repeated."""


class Node(NamedTuple):
    """This node, as the catalog knows it."""

    node_id: str
    open_catalog: Callable[[RetryWait], Catalog]
    """Called on a thread, again until it succeeds, with the wait between two tries of a request."""
    owns_id: Callable[[int], bool]
    """Whether the topic with this id belongs to this shard now; called on the loop."""


class CatalogWork:
    """The topics whose rows have to be created or changed, each once; topics near their ceiling first.

    A shard without a catalog ignores them.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.is_started = False
        """Whether the shard has a catalog."""
        self._write_max = 0
        self._urgent: dict[Topic, None] = {}
        self._topics: dict[Topic, None] = {}
        self._reply: Callable[[None], object] | None = None

    def start(self, write_max: int) -> None:
        """Begin to collect work; `write_max` is the number of records in the largest write."""
        self.is_started = True
        self._write_max = write_max

    def observe(self, topic: Topic, now_ms: int) -> None:
        """Observe the ceiling of a topic that has come to this shard, or have its row created."""
        if not self.is_started:
            return
        if topic.ownership is not None:
            watch_mark(topic, now_ms, self._write_max)
        if topic.ownership is None or not topic.ownership.owner_epoch or needs_raise(topic, now_ms):
            self.add(topic)

    def __len__(self) -> int:
        return len(self._urgent) + len(self._topics)

    @property
    def urgent_count(self) -> int:
        return len(self._urgent)

    def add(self, topic: Topic) -> None:
        if not self.is_started:
            return
        if topic.ownership is not None and topic.ownership.is_near:
            self._topics.pop(topic, None)
            self._urgent[topic] = None
        elif topic not in self._urgent:
            self._topics[topic] = None
        self.wake()

    def wake(self) -> None:
        """Have the job look for work; in a later turn, since this one is in the middle of a write."""
        if self._reply is not None:
            self._loop.call_soon(self._reply, None)
            self._reply = None

    def wait(self, reply: Callable[[None], object]) -> None:
        """Call `reply` when there is work, or now."""
        if len(self):
            reply(None)
        else:
            self._reply = reply

    def take(self, count: int) -> list[Topic]:
        taken = list(islice(self._urgent, count))
        taken += islice(self._topics, count - len(taken))
        for topic in taken:
            self._urgent.pop(topic, None)
            self._topics.pop(topic, None)
        return taken


class CatalogCalls:
    """The requests of a shard to its catalog, which run on threads.

    The first one opens the catalog.
    """

    def __init__(self, open_catalog: Callable[[RetryWait], Catalog], clock: Clock) -> None:
        self._open = open_catalog
        self._clock = clock
        self._lock = threading.Lock()
        self._catalog: Catalog | None = None
        self._stopped = threading.Event()
        self.request_count = self.failure_count = 0
        """Calls since the start, and those without an answer; inexact, since several threads count."""

    def stop(self) -> None:
        """Have a running list of calls end after its present call, of which no try is repeated."""
        self._stopped.set()

    def run(self, calls: Sequence[CatalogCall], seconds_max: float) -> list[Outcome]:
        """Make the calls in order, for at most `seconds_max`; return the outcomes so far.

        Raise CatalogUnavailable or CatalogRefused only when the first call fails so.
        """
        until = self._clock.monotonic() + seconds_max
        outcomes: list[Outcome] = []
        for call in calls:
            try:
                outcomes.append(self._outcome(call))
            except (CatalogUnavailable, CatalogRefused):
                if not outcomes:
                    raise
                break
            if self._stopped.is_set() or self._clock.monotonic() >= until:
                break
        return outcomes

    def _outcome(self, call: CatalogCall) -> Outcome:
        self.request_count += 1
        try:
            return call(self._opened())
        except (Fenced, ChangeRefused) as refused:
            return refused
        except (CatalogUnavailable, CatalogRefused):
            self.failure_count += 1
            raise

    def _opened(self) -> Catalog:
        with self._lock:
            if self._catalog is None:
                try:
                    self._catalog = self._open(self._stopped.wait)
                except CatalogExtraMissing as error:
                    raise CatalogRefused(str(error)) from error
            return self._catalog

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
