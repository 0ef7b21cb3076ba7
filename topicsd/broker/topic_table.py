"""The topics that a broker knows, as rows of the catalog that are looked up in groups.

A row may be outdated by up to the age that its user accepts. A commit needs none that is current: the catalog
compares the incarnation, and answers `missing` for another one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from shared.runtime.clock import Clock
from topicsd.broker.steps import Pool, Resume, Wait
from topicsd.catalog.shared.shared_catalog import TOPICS_AT_ONCE, SharedCatalog, SharedTopic

ANY_AGE: Final = float("inf")
ROWS_MAX: Final = 200_000
"""Rows that are kept; the oldest ones are dropped."""


_RANDOM_BITS: Final = 11


def new_incarnation(now_ms: int) -> int:
    """Return an incarnation for a topic that is created now.

    It is the epoch of the topic for clients, so it fits a JSON number of 53 bits, until the year 2109, and a
    topic that is created again has a higher one: a cursor with the lower epoch is known to be the older one.
    Clocks of nodes that differ by more than the time between the two break only this order. The random part
    separates creations of the same millisecond.

    >>> new_incarnation(1_700_000_000_001) > new_incarnation(1_700_000_000_000)
    True
    >>> new_incarnation(4_398_046_511_103) < 1 << 53
    True
    """
    return now_ms << _RANDOM_BITS | secrets.randbits(_RANDOM_BITS)


class _Row:
    __slots__ = ("read_at", "topic")

    def __init__(self, topic: SharedTopic, read_at: float) -> None:
        self.topic = topic
        self.read_at = read_at


class _Lookup(NamedTuple):
    seconds_max: float
    resume: Resume


class TopicTable:
    def __init__(self, clock: Clock, pool: Pool, catalog: SharedCatalog) -> None:
        self._clock = clock
        self._pool = pool
        self._catalog = catalog
        self._rows: dict[str, _Row] = {}
        self._waiting: dict[str, list[_Lookup]] = {}
        """By name: the lookups that the next call answers, in their order."""
        self._is_reading = False

    def known(self, name: str, seconds_max: float = ANY_AGE) -> SharedTopic | None:
        """Return the topic without a lookup, if it was read in the last `seconds_max`."""
        row = self._rows.get(name)
        if row is None or self._clock.monotonic() - row.read_at > seconds_max:
            return None
        return row.topic

    def find(self, name: str, seconds_max: float = ANY_AGE) -> Wait:
        """Wait for the topic; the result is None when there is none, or the OSError of the catalog."""
        return partial(self._find, name, seconds_max)

    def _find(self, name: str, seconds_max: float, resume: Resume) -> None:
        topic = self.known(name, seconds_max)
        if topic is not None:
            resume(topic)
            return
        self._waiting.setdefault(name, []).append(_Lookup(seconds_max, resume))
        self._read()

    def _read(self) -> None:
        if self._is_reading or not self._waiting:
            return
        self._is_reading = True
        names = list(self._waiting)[:TOPICS_AT_ONCE]
        waiting = [self._waiting.pop(name) for name in names]
        # Before the request: what the answer says is at least as new.
        read_at = self._clock.monotonic()
        self._pool.call(partial(self._catalog.topics, names))(partial(self._on_read, names, waiting, read_at))

    def _on_read(
        self,
        names: list[str],
        waiting: list[list[_Lookup]],
        read_at: float,
        outcome: list[SharedTopic | None] | OSError,
    ) -> None:
        self._is_reading = False
        results = [outcome] * len(names) if isinstance(outcome, OSError) else outcome
        for name, result in zip(names, results, strict=True):
            if isinstance(result, SharedTopic):
                self._keep(result, read_at)
            elif result is None:
                self._rows.pop(name, None)
        for name, lookups, result in zip(names, waiting, results, strict=True):
            for lookup in lookups + self._take_answered(name):
                lookup.resume(result)
        self._read()

    def _take_answered(self, name: str) -> list[_Lookup]:
        """Take those that wait for the next call and that the row answers, before later ones."""
        waiting = self._waiting.pop(name, [])
        answered = [one for one in waiting if self.known(name, one.seconds_max) is not None]
        left = [one for one in waiting if one not in answered]
        if left:
            self._waiting[name] = left
        return answered

    def _keep(self, topic: SharedTopic, read_at: float) -> None:
        self._rows.pop(topic.name, None)
        self._rows[topic.name] = _Row(topic, read_at)
        if len(self._rows) > ROWS_MAX:
            del self._rows[next(iter(self._rows))]

    def change(self, verb: Callable[[], SharedTopic | None], name: str) -> Wait:
        """Wait for a change of one topic by a verb of the catalog, and keep the row that it returns.

        The change has no own retries: it is safe to repeat, and the caller knows how long its client waits.
        """

        def start(resume: Resume) -> None:
            def end(outcome: SharedTopic | OSError | None) -> None:
                if isinstance(outcome, SharedTopic):
                    self._keep(outcome, self._clock.monotonic())
                else:
                    self.forget(name)
                resume(outcome)

            self._pool.call(verb)(end)

        return start

    def forget(self, name: str) -> None:
        """Drop a row that has turned out to be outdated; the next user looks it up."""
        self._rows.pop(name, None)
