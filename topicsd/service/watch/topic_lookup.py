"""The lookup of the topics that a follower selects, and of where to begin in them."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from shared.contract.errors import TOPIC_NOT_FOUND, Refusal
from shared.contract.tag_filter import TopicSelection
from topicsd.engine.jobs import BackgroundJob, operation
from topicsd.engine.topic_admin import topic_not_found
from topicsd.service.shards.topic_heads import RequestedPosition, TopicHeads, TopicStart
from topicsd.stream.tail.topic_finder import TopicFinder, TopicFinders

PositionOf = Callable[[str], tuple[RequestedPosition, int | None]]
"""Returns the position that a client requests in a topic, and the epoch that it has read."""


class TopicLookups(NamedTuple):
    """The lookups of one process; a follower has at most `topics_max` topics."""

    heads: TopicHeads
    finders: TopicFinders
    topics_max: int


class SelectedTopics(NamedTuple):
    """The topics that exist, with the heads that they had, and the others."""

    starts: dict[str, TopicStart]
    new: list[str]
    """Names that were created a moment ago."""
    missing: list[str]
    are_all: bool
    """Whether there is room for all topics that patterns match."""


class TopicLookup:
    """One lookup. Its `finder`, if there is one, finds the topics that are created later; close it."""

    def __init__(self, lookups: TopicLookups, selection: TopicSelection, position_of: PositionOf) -> None:
        self._lookups = lookups
        self._selection = selection
        self._position_of = position_of
        self.finder: TopicFinder | None = None

    def run(
        self, names: Sequence[str], *, is_waiting: bool, first: Container[str] = ()
    ) -> BackgroundJob[SelectedTopics | Refusal]:
        """Find the topics; `names` are those of the selection, in the order of the answer.

        The topics of `first` come before other topics that patterns match, should there be no room for all.
        """
        starts = yield from self._find(names)
        if isinstance(starts, Refusal):
            return starts
        missing = [name for name in names if name not in starts]
        if missing and not is_waiting:
            return topic_not_found(missing[0])
        if not missing and not self._selection.has_patterns:
            return SelectedTopics(starts, [], [], are_all=True)
        topics_max = self._lookups.topics_max
        self.finder = self._lookups.finders.finder(self._selection, topics_max + 1)
        listed: list[str] | Refusal = yield from operation(self.finder.find_existing)
        if isinstance(listed, Refusal):
            return listed
        matched = [name for name in listed if name not in self._selection.filter.tags]
        matched.sort(key=lambda name: name not in first)
        room = max(0, topics_max - len(names))
        others = yield from self._find(matched[:room])
        if isinstance(others, Refusal):
            return others
        new = [name for name in missing if name in listed]
        missing = [name for name in missing if name not in listed]
        return SelectedTopics({**starts, **others}, new, missing, len(matched) <= room)

    def close(self) -> None:
        if self.finder is not None:
            self.finder.close()
            self.finder = None

    def _find(self, names: Sequence[str]) -> BackgroundJob[dict[str, TopicStart] | Refusal]:
        """Return where to begin in those of the topics that exist."""
        positions = {name: self._position_of(name) for name in names}
        heads = yield from self._lookups.heads.find({name: one for name, (one, _) in positions.items()})
        starts: dict[str, TopicStart] = {}
        for name, (position, epoch) in positions.items():
            head = heads[name]
            if isinstance(head, Refusal):
                if head.code != TOPIC_NOT_FOUND:
                    return head
                continue
            start = head.start(name, position, epoch)
            if isinstance(start, Refusal):
                return start
            starts[name] = start
        return starts
