"""Searches for topics of this shard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from typing import Final

from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.state import ShardState
from topicsd.stream.tail.topic_search import NOT_NOW, TopicNames, TopicQuery

logger = logging.getLogger("topicsd.stream")

TOPICS_PER_TURN: Final = 1000


class ShardSearcher:
    """Topics in `hidden` are left out: another shard has them."""

    def __init__(self, shard: ShardState, hidden: Container[str]) -> None:
        self._shard = shard
        self._hidden = hidden

    def search(self, query: TopicQuery, reply: Callable[[TopicNames], object]) -> Callable[[], None]:
        search = _ShardSearch(self._shard, query, reply, self._is_here)
        search.begin()
        return search.cancel

    def _is_here(self, name: str) -> bool:
        return self._shard.visible_topic(name) is not None and name not in self._hidden


class _ShardSearch:
    """One search, until it is answered or cancelled."""

    def __init__(
        self,
        shard: ShardState,
        query: TopicQuery,
        reply: Callable[[TopicNames], object],
        is_here: Callable[[str], bool],
    ) -> None:
        self._shard = shard
        self._query = query
        self._reply: Callable[[TopicNames], object] | None = reply
        self._is_here = is_here
        self._is_scheduled = False

    def begin(self) -> None:
        place = self._query.place
        names = None if place is None else self._shard.creations.since(place)
        if names is None:
            self._shard.jobs.start(self._list(), self._on_list)
        elif any(map(self._query.selection.selects, names)):
            self._schedule()
        else:
            self._shard.creations.listen(self._on_creation)

    def cancel(self) -> None:
        self._reply = None
        self._shard.creations.unlisten(self._on_creation)

    def _on_creation(self, name: str) -> None:
        if self._query.selection.selects(name):
            self._shard.creations.unlisten(self._on_creation)
            self._schedule()

    def _schedule(self) -> None:
        """Answer in the next turn, with all topics of this one, when their records can be read."""
        self._shard.loop.call_soon(self._answer_news)

    def _answer_news(self) -> None:
        creations, place = self._shard.creations, self._query.place
        names = None if place is None else creations.since(place)
        if self._reply is None:
            return
        if names is None:
            self._shard.jobs.start(self._list(), self._on_list)
        else:
            names = [name for name in dict.fromkeys(names) if self._selects(name)]
            self._end(TopicNames(creations.place, names[: self._query.names_max]))

    def _selects(self, name: str) -> bool:
        return self._query.selection.selects(name) and self._is_here(name)

    def _list(self) -> BackgroundJob[TopicNames]:
        """List the selected topics, in the order of their names."""
        place, names_max = self._shard.creations.place, self._query.names_max
        selected: list[str] = []
        selection = self._query.selection
        all_names = list(
            self._shard.sorted_names() if selection.has_patterns else sorted(selection.filter.tags)
        )
        for start in range(0, len(all_names), TOPICS_PER_TURN):
            selected += filter(self._selects, all_names[start : start + TOPICS_PER_TURN])
            if len(selected) >= names_max or self._reply is None:
                break
            yield None
        return TopicNames(place, selected[:names_max])

    def _on_list(self, outcome: TopicNames | Exception) -> None:
        if isinstance(outcome, Exception):
            refuse_unexpected_error(logger, "a search for topics", outcome)
            outcome = TopicNames(NOT_NOW, [])
        self._end(outcome)

    def _end(self, answer: TopicNames) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply(answer)
