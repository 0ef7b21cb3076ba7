"""The data of a shard that runs, with what requests and the background need beside it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from shared.contract.errors import THROTTLED, Refusal
from shared.contract.topic_config import TopicConfig
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop, Threads
from shared.settings.settings import Settings
from topicsd.engine.queue.dead_letter import STAMP_BYTES_MAX
from topicsd.engine.queue.removal import GoneJobs
from topicsd.engine.queue.timers import QueueDue
from topicsd.engine.read.page_cache import PageCache
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.requests import Reply
from topicsd.engine.shard_data import ShardData
from topicsd.engine.topic import Topic
from topicsd.engine.wakeups.wake_queue import Watch
from topicsd.log.batch import Entry
from topicsd.log.control_frame import Control, encode_control
from topicsd.log.files import LogFiles
from topicsd.log.group_commit import GroupCommit
from topicsd.segment.reader import SegmentReader

if TYPE_CHECKING:
    from topicsd.engine.routes.route import Forward, StandOf
    from topicsd.engine.write.append import PendingAppend


# With it every number takes the same room in a frame.
_LEASES_FROM = 1 << 61


class ControlEntry(Entry, Protocol):
    def wait(self) -> None:
        """See `TopicEntry.wait`."""
        ...


class SeenHead(NamedTuple):
    head: int
    at: float


class ShardState(ShardData):
    """All of it is there once it is constructed, but `log`: that one exists when the log was recovered."""

    log: GroupCommit

    def __init__(
        self,
        clock: Clock,
        settings: Settings,
        files: LogFiles,
        segments: SegmentReader,
        loop: Loop,
        threads: Threads,
        number: int,
    ) -> None:
        super().__init__(clock, settings, files, segments)
        self.number = number
        self.loop = loop
        self.threads = threads
        self.watch = Watch(loop, clock)
        self.due = QueueDue(loop, clock, self.watch)
        self.gone_jobs = GoneJobs(loop, self._jobs_left)
        self.pages = PageCache(settings.page_cache_bytes)
        self.stamped_settings = msgspec.structs.replace(
            settings,
            max_meta_bytes=settings.max_meta_bytes + STAMP_BYTES_MAX,
            max_record_bytes=settings.max_record_bytes + STAMP_BYTES_MAX,
        )
        """For records to whose meta something was added here."""
        self.keyed: dict[bytes, PendingAppend] = {}
        """Keyed writes that are on their way, by the digest of their key."""
        self.raised: dict[Topic, SeenHead | None] = {}
        """Topics whose ceiling may stand above their head, with the head at the last look: oldest first."""

        self.referable_from = 0
        """The position in the log behind which this run wrote, and the newest checkpoint began: what stands
        there may be referred to (`originals.py`)."""
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

    def _jobs_left(self, topic: Topic) -> None:
        """Wake claims: what stood in front of other jobs may be gone."""
        if topic.waiters is not None:
            self.watch.wake(topic)
        self.due.look(topic)

    def add_topic(self, topic: Topic) -> None:
        super().add_topic(topic)
        if topic.queue is not None:
            topic.queue.later = partial(self.gone_jobs.wake, topic)

    def remove_topic(self, topic: Topic) -> None:
        super().remove_topic(topic)
        self.gone_jobs.forget(topic)
        self.raised.pop(topic, None)
        self.unlogged_floors.pop(topic, None)
        for forward in topic.forwards.values():
            self.on_forward(forward)

    def set_config(self, topic: Topic, config: TopicConfig) -> None:
        super().set_config(topic, config)
        if topic.queue is not None and topic.queue.parked:
            self.on_parked(topic)  # There may be a place for them now.

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

    def visible_topic(self, name: str) -> Topic | None:
        topic = self.topics.get(name)
        return topic if topic is not None and topic.visible else None

    def must_wait(self, topic: Topic) -> bool:
        """Whether what joins now is published by a sync, whatever its class."""
        return topic.waiting_count > 0 or self.log.behind
