"""Searches for shared topics, in a broker process.

S1  While searches wait, the catalog is asked for all of them together: for the rows of the names, and for the
    topics that begin as the patterns do. Without waiting searches it is not asked.
S2  The catalog is asked every `poll_seconds`, and less often when the answers take long: at most a fifth of
    the time is spent waiting for them.
S3  A search that lists is answered after the next round that begins. While the catalog does not answer, its
    answer has the place `NOT_NOW`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.broker.broker import Broker
from topicsd.broker.steps import Steps, call_reply, run, together
from topicsd.catalog.shared.shared_catalog import SharedTopic
from topicsd.stream.shared.shared_reads import CURRENT
from topicsd.stream.tail.topic_search import NOT_NOW, TopicNames, TopicQuery

logger = logging.getLogger("topicsd.stream")

POLL_SECONDS: Final = 0.25
WAITS_FOR_EACH_SECOND: Final = 4
PAGE_TOPICS: Final = 1000


class _SharedSearch:
    def __init__(self, query: TopicQuery, reply: Callable[[TopicNames], object]) -> None:
        self.query = query
        self.reply = reply
        self.known = frozenset(query.known)


class SharedSearcher:
    def __init__(self, broker: Broker, loop: Loop, clock: Clock, poll_seconds: float = POLL_SECONDS) -> None:
        self._broker = broker
        self._loop = loop
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._searches: dict[_SharedSearch, None] = {}
        self._is_polling = False
        self._timer: Any = None
        self.polls = 0

    def search(self, query: TopicQuery, reply: Callable[[TopicNames], object]) -> Callable[[], None]:
        search = _SharedSearch(query, reply)
        self._searches[search] = None
        if query.place is None and not self._is_polling:
            self._poll_in(0.0)
        elif self._timer is None and not self._is_polling:
            self._poll_in(self._poll_seconds)
        return partial(self._cancel, search)

    def _cancel(self, search: _SharedSearch) -> None:
        self._searches.pop(search, None)

    def _poll_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self._poll)

    def _poll(self) -> None:
        self._timer = None
        if self._searches:
            self._is_polling = True
            self.polls += 1
            searches, started = list(self._searches), self._clock.monotonic()
            run(self._names(searches), partial(self._on_names, searches, started))

    def _names(self, searches: list[_SharedSearch]) -> Steps[list[str]]:
        """Return the names of all topics that one of the searches may select."""
        filters = [one.query.selection.filter for one in searches]
        names = {name for one in filters for name in one.tags}
        lookups = [self._broker.topics.find(name, CURRENT) for name in sorted(names)]
        rows: list[SharedTopic | OSError | None] = yield together(lookups)
        for row in rows:
            if isinstance(row, OSError):
                raise row
        names = {row.name for row in rows if isinstance(row, SharedTopic)}
        patterns = (pattern for one in filters for pattern in (*one.prefixes, *map(_beginning, one.globs)))
        for prefix in _widest(patterns):
            page: list[SharedTopic] = yield self._broker.list(prefix, "", PAGE_TOPICS)
            names.update(topic.name for topic in page)
            while len(page) == PAGE_TOPICS:
                page = yield self._broker.list(prefix, page[-1].name, PAGE_TOPICS)
                names.update(topic.name for topic in page)
        return sorted(names)

    def _on_names(self, searches: list[_SharedSearch], started: float, outcome: list[str] | OSError) -> None:
        self._is_polling = False
        if isinstance(outcome, OSError):
            logger.warning("topics: search of the catalog failed, new topics are late: %s", outcome)
        for search in searches:
            if search not in self._searches:
                continue
            answer = self._answer(search, outcome)
            if answer is not None:
                del self._searches[search]
                call_reply(search.reply, answer)
        if any(one.query.place is None for one in self._searches):
            self._poll_in(0.0)
        elif self._searches:
            seconds = WAITS_FOR_EACH_SECOND * (self._clock.monotonic() - started)
            self._poll_in(max(self._poll_seconds, seconds))

    def _answer(self, search: _SharedSearch, outcome: list[str] | OSError) -> TopicNames | None:
        """Return the answer to a search, or None while it has to wait."""
        query = search.query
        if isinstance(outcome, OSError):
            return TopicNames(NOT_NOW, []) if query.place is None else None
        names = [name for name in outcome if name not in search.known and query.selection.selects(name)]
        return TopicNames(0, names[: query.names_max]) if names or query.place is None else None


def _beginning(pattern: str) -> str:
    """Return the text before the first star or question mark.

    >>> _beginning("orders.*.eu"), _beginning("*")
    ('orders.', '')
    """
    return pattern.partition("*")[0].partition("?")[0]


def _widest(prefixes: Iterable[str]) -> list[str]:
    """Return the prefixes that begin with no other one.

    >>> _widest(["a.b", "b", "a.", "a."])
    ['a.', 'b']
    """
    widest: list[str] = []
    for prefix in sorted(set(prefixes)):
        if not widest or not prefix.startswith(widest[-1]):
            widest.append(prefix)
    return widest
