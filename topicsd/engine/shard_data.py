"""The data of one shard in memory, as a snapshot and the log restore it; complete once it is constructed.

Loading and replay work on this class alone. Commands that only inspect a shard therefore need no event loop,
thread or open log, and the type check refuses access to attributes that only a running shard has.
`ShardState` is the same data in a running shard.

Topics are found by name and by id. A topic is added when its creation joins the log, and becomes `visible`
when its creation is published.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from shared.contract.topic_config import TopicConfig
from shared.runtime.clock import Clock
from shared.settings.settings import Settings
from topicsd.engine.queue.state import apply_config_to_parked, note_former
from topicsd.engine.topic import Topic, Totals
from topicsd.engine.write.idempotency import IdempotencyKeys
from topicsd.log.control_frame import SessionFrame
from topicsd.log.files import LogFiles
from topicsd.segment.entry import SegmentName
from topicsd.segment.reader import SegmentReader

if TYPE_CHECKING:
    from topicsd.engine.routes.route import RouteState

# Work on all topics spends a few microseconds on each run.
RUNS_A_TURN: Final = 250


class ShardData:
    """The topics, keys, sessions and routes of one shard."""

    def __init__(
        self,
        clock: Clock,
        settings: Settings,
        files: LogFiles,
        segments: SegmentReader,
        totals: Totals | None = None,
    ) -> None:
        self.clock = clock
        self.settings = settings
        self.files = files
        self.segments = segments
        self.totals = totals or Totals()
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[int, Topic] = {}
        self._names: list[str] = []
        self._new_names: list[str] = []
        self._configs: dict[TopicConfig, TopicConfig] = {}
        self.idempotency_keys = IdempotencyKeys(settings.max_idempotency_keys)
        self.watch_sessions: dict[bytes, SessionFrame] = {}
        """The watch sessions, which survive restarts, by the random part of their id."""
        self.routes: dict[str, RouteState] = {}
        """The routes that copy into topics of this shard, by name."""
        self.referred_bytes = 0
        """The bytes of records by reference since the last checkpoint; the log itself holds none of them."""
        self.deleted_topics: list[tuple[int, int]] = []
        """The id and epoch of each deleted topic that has files."""
        self.damaged_segments: set[SegmentName | str] = set()
        """Segments, and log files by name, that are known to be damaged (`damage.py`)."""
        self.eviction_failures: set[int] = set()
        """Epochs of topics whose eviction failed once, which is logged once."""

    def intern_config(self, config: TopicConfig) -> TopicConfig:
        """Intern a configuration: most of 100,000 topics share one object."""
        return self._configs.setdefault(config, config)

    def add_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self._new_names.append(topic.name)
        self.topics_by_id[topic.topic_id] = topic
        self.totals.leases_in_flight += topic.totals.leases_in_flight
        topic.totals = self.totals
        if topic.queue is not None:
            self.totals.queue_count += 1
        self.totals.by_class[topic.config.durability] += 1
        self.totals.live_count += topic.live_count
        self.totals.live_bytes += topic.live_bytes

    def remove_topic(self, topic: Topic) -> None:
        del self.topics[topic.name]
        names = self.sorted_names()
        del names[bisect_left(names, topic.name)]
        del self.topics_by_id[topic.topic_id]
        topic.add_live(-topic.live_count, -topic.live_bytes)
        if topic.queue is not None:
            self.totals.queue_count -= 1
            self.totals.leases_in_flight -= topic.queue.counts().in_flight
        self.totals.by_class[topic.config.durability] -= 1
        if topic.has_files:
            self.deleted_topics.append((topic.topic_id, topic.epoch))
        for route in topic.routes.values():
            del self.routes[route.rule.name]
            route.is_gone = True

    def set_config(self, topic: Topic, config: TopicConfig) -> None:
        """Apply a new configuration to a topic of this shard."""
        note_former(topic, config.dead_letter)
        by_class = self.totals.by_class
        by_class[topic.config.durability] -= 1
        topic.set_config(self.intern_config(config))
        by_class[config.durability] += 1
        apply_config_to_parked(topic)

    def topics_by_turns(self) -> Iterator[list[Topic]]:
        """Yield the topics that exist now, in groups that each suit one turn of the loop.

        Some may be deleted before their group.
        """
        topics: list[Topic] = []
        run_count = 0
        for topic in list(self.topics.values()):
            topics.append(topic)
            run_count += len(topic.runs)
            if run_count >= RUNS_A_TURN:
                yield topics
                topics, run_count = [], 0
        yield topics

    def sorted_names(self) -> list[str]:
        """Return the names of all topics in order; sort in the names added since the last call."""
        if self._new_names:
            self._names += self._new_names
            self._names.sort()
            self._new_names.clear()
        return self._names
