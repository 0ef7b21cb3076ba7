"""What one shard holds in memory, for the modules that act on it.

A topic is found by its name and by its id. From the moment its creation joins the log it is here, and
`visible` from the moment that is published.

Must not know: how anything is done with it.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from shared.clock import Clock
from shared.config import Settings
from shared.contract import TopicConfig
from shared.errors import THROTTLED, Refusal
from topicsd.engine.dedupe import Dedupe
from topicsd.engine.gone_jobs import GoneJobs
from topicsd.engine.page_cache import PageCache
from topicsd.engine.queue_due import QueueDue
from topicsd.engine.queue_state import note_former, settle_parked
from topicsd.engine.requests import Reply
from topicsd.engine.sealed_run import SealedRun
from topicsd.engine.topic import Topic, Totals
from topicsd.engine.watch import Watch
from topicsd.leases.dead_letter import STAMP_BYTES_MAX
from topicsd.segment.entry import SegmentName
from topicsd.segment.reader import SegmentReader
from topicsd.wal.batch import Entry
from topicsd.wal.control_frame import Control, WatchSession, encode_control
from topicsd.wal.group_commit import GroupCommit
from topicsd.wal.log_files import LogFiles
from topicsd.wal.sync_thread import Loop, Threads

if TYPE_CHECKING:
    from topicsd.engine.append import PendingAppend
    from topicsd.engine.forwards import Forward, StandOf


# With it every number takes the same room in a frame.
_LEASES_FROM = 1 << 61


class ControlEntry(Entry, Protocol):
    def wait(self) -> None:
        """See `TopicEntry.wait`."""
        ...


class SeenHead(NamedTuple):
    head: int
    at: float


class ShardState:
    def __init__(self, clock: Clock, settings: Settings, files: LogFiles) -> None:
        self.clock = clock
        self.settings = settings
        self.stamped_settings = msgspec.structs.replace(
            settings,
            max_meta_bytes=settings.max_meta_bytes + STAMP_BYTES_MAX,
            max_record_bytes=settings.max_record_bytes + STAMP_BYTES_MAX,
        )
        """For records to whose meta something was added here."""
        self.files = files
        self.pages = PageCache(settings.page_cache_bytes)
        self.threads: Threads
        self.segments: SegmentReader
        self.gone_topics: list[tuple[int, int]] = []
        """Id and epoch of those that were deleted and have files."""
        self.damaged_segments: set[SegmentName] = set()
        """What upkeep found to be damaged."""
        self.overfull: set[int] = set()
        """Epochs of topics of which it was said that what is to leave them cannot be told."""
        self.watch: Watch
        self.due: QueueDue
        self.gone_jobs: GoneJobs
        self.loop: Loop
        self.log: GroupCommit
        self._configs: dict[TopicConfig, TopicConfig] = {}
        self.totals = Totals()
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[int, Topic] = {}
        self._names: list[str] = []
        self._new_names: list[str] = []
        self.dedupe = Dedupe(settings.max_idempotency_keys)
        self.keyed: dict[bytes, PendingAppend] = {}
        """Keyed writes that are on their way, by the digest of their key."""
        self.raised: dict[Topic, SeenHead | None] = {}
        """Topics whose ceiling may stand above their head, with the head at the last look: oldest first."""
        self.watch_sessions: dict[bytes, WatchSession] = {}
        """Those that are kept over restarts, by the random part of their id."""

        self.forwards: dict[str, Forward] = {}
        """Those that copy into topics of this shard, by name."""
        self.referable_from = 0
        """The position in the log behind which this run wrote, and the newest checkpoint began: what stands
        there may be referred to (`originals.py`)."""
        self.referred_bytes = 0
        """What records by reference add up to that no checkpoint has come to: the log is short, and their
        index is not."""
        self.on_forward: Callable[[Forward], object] = lambda forward: None
        """Called when one is new, has changed or is gone, as the log has it."""
        self.stand_of: StandOf | None = None
        """Finds out where a topic of another shard stands."""

        self.next_lease = _LEASES_FROM | secrets.randbits(61)
        """No number is given twice, also not by another run: one from before says nothing."""
        self.on_parked: Callable[[Topic], object] = lambda topic: None
        """Called when jobs of a queue are to leave it for its dead-letter topic, as the log has it."""

        self.job_reads: dict[SealedRun, list[Callable[[Any], None]]] = {}
        """Who waits for records of jobs that are being read."""
        self.cohorts: dict[Topic, Any] = {}
        """Claims that are served together, by their queue."""
        self.drains = False
        """The shard is about to end: claims do not wait for others."""

        self.unlogged_floors: dict[Topic, None] = {}
        """Topics of which a full disk kept out of the log what readers were told."""

    def runs_in(self, loop: Loop) -> None:
        self.loop = loop
        self.watch = Watch(loop, self.clock)
        self.due = QueueDue(loop, self.clock, self.watch)
        self.gone_jobs = GoneJobs(loop, self._jobs_left)

    def _jobs_left(self, topic: Topic) -> None:
        """What stood in front of other jobs may be gone, and nobody was told of what came meanwhile."""
        if topic.waiters is not None:
            self.watch.wake(topic)
        self.due.look(topic)

    def one_config(self, config: TopicConfig) -> TopicConfig:
        """Topics that are configured alike share one object: most of 100,000 are."""
        return self._configs.setdefault(config, config)

    def note(self, topic: Topic, frame: bytes, entry: Entry, is_urgent: bool = False) -> None:
        """Log something of a topic that nobody waits for. Nothing of a topic stands behind its deletion."""
        assert topic.leaving is None
        self.log.join_in_passing(frame, entry, is_urgent)

    def join_control(
        self, topic: Topic, control: Control, entry: ControlEntry, waits_for_sync: bool = False
    ) -> None:
        """Log what a request does to the topic, by the topic's class; one that is ephemeral logs nothing."""
        waits = waits_for_sync or topic.is_durable or self.must_wait(topic)
        if waits:
            entry.wait()
        frames = []
        if not topic.is_ephemeral:
            durable = topic.is_durable
            frames.append(encode_control(control, topic_id=topic.topic_id, ts=topic.last_ts, durable=durable))
        self.log.join(frames, sum(map(len, frames)), len(frames), entry, waits)

    def defer(self, topic: Topic, again: Callable[[], object], reply: Reply) -> None:
        """The topic's deletion is on its way: what comes for its name meanwhile is done after it."""
        assert topic.leaving is not None
        if len(topic.leaving) < self.settings.max_waiting_requests:
            topic.leaving.append(again)
        else:
            message = (
                f'topic "{topic.name}" is being deleted and too many requests wait for it; retry after 1 s'
            )
            reply(Refusal(THROTTLED, message, retry_after_ms=1000))

    def watch_ceiling(self, topic: Topic, now: float | None = None) -> None:
        """Look at its ceiling again later; `now` is the time of a look."""
        self.raised.pop(topic, None)
        self.raised[topic] = None if now is None else SeenHead(topic.next_seq - 1, now)

    def add_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self._new_names.append(topic.name)
        self.topics_by_id[topic.topic_id] = topic
        self.totals.leases_in_flight += topic.totals.leases_in_flight
        topic.totals = self.totals
        if topic.queue is not None:
            self.totals.queue_count += 1
            topic.queue.later = partial(self.gone_jobs.wake, topic)
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
            self.gone_jobs.forget(topic)
        self.totals.by_class[topic.config.durability] -= 1
        if topic.has_files:
            self.gone_topics.append((topic.topic_id, topic.epoch))
        self.raised.pop(topic, None)
        self.unlogged_floors.pop(topic, None)
        for forward in topic.forwards.values():
            del self.forwards[forward.rule.name]
            forward.is_gone = True
            self.on_forward(forward)

    def set_config(self, topic: Topic, config: TopicConfig) -> None:
        """What one of the topics here is from now on."""
        note_former(topic, config.dead_letter)
        by_class = self.totals.by_class
        by_class[topic.config.durability] -= 1
        topic.set_config(self.one_config(config))
        by_class[config.durability] += 1
        settle_parked(topic)
        if topic.queue is not None and topic.queue.parked:
            self.on_parked(topic)  # There may be a place for them now.

    def sorted_names(self) -> list[str]:
        """Of all topics. New ones are sorted in when somebody asks, all at once."""
        if self._new_names:
            self._names += self._new_names
            self._names.sort()
            self._new_names.clear()
        return self._names

    def visible_topic(self, name: str) -> Topic | None:
        topic = self.topics.get(name)
        return topic if topic is not None and topic.visible else None

    def must_wait(self, topic: Topic) -> bool:
        """Whether what joins now is published by a sync, whatever its class."""
        return topic.waiting_count > 0 or self.log.behind
