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
from typing import TYPE_CHECKING, Final, NamedTuple, TypeGuard

from shared.contract.topic_config import TopicConfig
from shared.runtime.clock import Clock
from shared.settings.settings import Settings
from topicsd.engine.ownership.departed import Departed, ToForget
from topicsd.engine.queue.state import apply_config_to_parked, note_former
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.topic import Topic, Totals
from topicsd.engine.write.idempotency import IdempotencyKeys
from topicsd.log.control_frame import SessionFrame
from topicsd.log.files import LogFiles
from topicsd.segment.entry import DroppedSegment, SegmentName
from topicsd.segment.reader import SegmentReader

if TYPE_CHECKING:
    from topicsd.engine.routes.route import RouteState

# Work on all topics spends a few microseconds on each run.
RUNS_A_TURN: Final = 250


class DeletedTopic(NamedTuple):
    """A deleted topic whose files and objects are to be dropped."""

    topic_id: int
    epoch: int
    exported: list[DroppedSegment]
    """Its segments with objects. Its files are found in its directory."""


def _is_exported(run: Run) -> TypeGuard[SealedRun]:
    return isinstance(run, SealedRun) and run.entry.object_stem != ""


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
        self.queues_with_schedules: dict[Topic, None] = {}
        """The queues with schedules."""
        self.referred_bytes = 0
        """The bytes of records by reference since the last checkpoint; the log itself holds none of them."""
        self.departed: dict[str, Departed] = {}
        """The topics that this node must not serve any more, by name (`ownership/departed.py`)."""
        self.to_forget: dict[ToForget, None] = {}
        """The rows of deleted topics that the catalog may still have, oldest first."""
        self.adopted_topics: list[tuple[int, int]] = []
        """The id and epoch of each adopted topic whose bundle file a start may still need."""
        self.epoch_floor = 0
        """The highest epoch that is no ordinal of this log; new topics get higher ones."""
        self.deleted_topics: list[DeletedTopic] = []
        """The deleted topics that have files."""
        self.objects_to_delete: dict[str, int] = {}
        """The stems of objects that no kept snapshot names, and the time in ms when each was dropped.

        Every snapshot lists those that are left, so that a store that is away delays a delete and loses none.
        """
        self.damaged_segments: set[SegmentName | str] = set()
        """Segments, and log files by name, that are known to be damaged (`damage.py`)."""
        self.eviction_failures: set[int] = set()
        """Cache keys of topics whose eviction failed once, which is logged once."""

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
        if topic.schedules:
            self.note_schedules(topic)

    def delete_topic(self, topic: Topic, has_moved: bool = False) -> None:
        """Remove a topic that was deleted, or with `has_moved`, that left this shard.

        After a deletion its objects and its row in the catalog have to be removed too.
        """
        self.remove_topic(topic, has_moved)
        if has_moved:
            return
        departed = self.departed.get(topic.name)
        if departed is not None and departed.epoch == topic.epoch:
            # The catalog has no row of it.
            del self.departed[topic.name]
        elif topic.ownership is not None:
            # The catalog may have created the row although its answer is not known (O1).
            self.to_forget[ToForget(topic.name, topic.epoch, topic.ownership.owner_epoch or 1)] = None

    def remove_topic(self, topic: Topic, has_moved: bool = False) -> None:
        del self.topics_by_id[topic.topic_id]
        if topic.has_files:
            exported = [one for one in topic.dropped if one.object_stem]
            if not has_moved:
                exported += [
                    DroppedSegment.of(run.name, run.entry) for run in topic.runs if _is_exported(run)
                ]
            self.deleted_topics.append(DeletedTopic(topic.topic_id, topic.epoch, exported))
        if self.topics.get(topic.name) is topic:
            self._remove_name(topic)

    def depart(self, topic: Topic, departed: Departed) -> None:
        """Serve a topic no more; its files are kept."""
        self.departed[topic.name] = departed
        if self.topics.get(topic.name) is topic:
            count, size = topic.live_count, topic.live_bytes
            self._remove_name(topic)
            # Its pending writes are still published, and must not count in the shard. The topic keeps its own
            # counts, by which a repair goes.
            topic.totals = Totals()
            topic.add_live(count, size)

    def _remove_name(self, topic: Topic) -> None:
        del self.topics[topic.name]
        names = self.sorted_names()
        del names[bisect_left(names, topic.name)]
        topic.add_live(-topic.live_count, -topic.live_bytes)
        if topic.queue is not None:
            self.totals.queue_count -= 1
            self.totals.leases_in_flight -= topic.queue.counts().in_flight
        self.totals.by_class[topic.config.durability] -= 1
        self.queues_with_schedules.pop(topic, None)
        for route in topic.routes.values():
            # Another topic may have a route of this name since this one departed.
            if self.routes.get(route.rule.name) is route:
                del self.routes[route.rule.name]
            route.is_gone = True

    def note_schedules(self, topic: Topic) -> None:
        """Note that the schedules of a topic of this shard have changed."""
        if topic.schedules:
            self.queues_with_schedules[topic] = None
        else:
            self.queues_with_schedules.pop(topic, None)

    def gets_dead_letters(self, name: str) -> bool:
        """Return whether a queue of this shard has the name as its dead-letter topic."""
        if not any(config.dead_letter == name for config in self._configs):
            return False
        # A configuration is kept when no topic has it any more.
        return any(topic.config.dead_letter == name for topic in self.topics.values())

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
