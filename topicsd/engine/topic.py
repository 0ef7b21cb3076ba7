"""One topic of the shard: its seqs, live records, runs, configuration, cursors, producers and queue.

Invariants of the numbers:

T1  Seqs up to `head` are published. The seqs after it and before `next_seq` are given out and pending.
T2  `earliest_seq` is the first live seq, `head + 1` when no record is live. Loss and deletes raise it.
T3  `evicted_to` holds, by reason, the last live seq that was lost involuntarily. `evict_floor` is the
    highest of them plus one: only involuntary loss raises it, so `evict_floor <= earliest_seq`.
T4  No seq above `ceiling` was ever given out without a sync (see `seq_ceiling.py`).
T5  While an entry of the topic waits for a sync (`waiting_count`), all later entries wait too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from shared.contract.errors import Refusal
from shared.contract.topic_config import DURABILITIES, TopicConfig
from topicsd.engine.queue.lease_queue import LeaseQueue
from topicsd.engine.records.lost_range import LostRanges
from topicsd.engine.records.run import Run
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.schema.record_schema import RecordSchema, schema_of
from topicsd.engine.wakeups.priority import base_priority
from topicsd.engine.write.producers import Producers
from topicsd.log.control_frame import Cursor
from topicsd.segment.entry import DroppedSegment, SegmentName

if TYPE_CHECKING:
    from topicsd.engine.ownership.owned import Owned
    from topicsd.engine.routes.route import RouteState
    from topicsd.engine.schedules.schedule import ScheduleState
    from topicsd.engine.write.append import PendingAppend

NEVER = 1 << 63
_NO_WRITES: Final[dict[str, list[PendingAppend]]] = {}
_NO_CURSORS: Final[dict[str, Cursor]] = {}
_NO_ROUTES: Final[dict[str, RouteState]] = {}
_NO_SCHEDULES: Final[dict[str, ScheduleState]] = {}


def _next_seq(run: Run) -> int:
    return run.next_seq


# Each part holds the tags of about 2,000 records.
FREED_AT_ONCE = 8


class DeferredRequest(NamedTuple):
    """A request for a topic that accepts none now, to be retried or refused later."""

    retry: Callable[[], object]
    refuse: Callable[[Refusal], object]


def remove_at_once(topic: Topic) -> None:
    """Remove the pending jobs of removed records in one step, as recovery does."""
    while topic.queue is not None and topic.queue.remove_some():
        pass


class Totals:
    """The sums over all topics of a shard, and what the topics ask of it."""

    __slots__ = (
        "by_class",
        "evicted_count",
        "leases_in_flight",
        "live_bytes",
        "live_count",
        "queue_count",
        "schedule_removal",
        "synced_position",
        "tags_to_free",
    )

    def __init__(
        self,
        synced_position: Callable[[], int] = lambda: NEVER,
        schedule_removal: Callable[[Topic], object] = remove_at_once,
    ) -> None:
        self.synced_position = synced_position
        """The position up to which the log is on the disk itself. A replayed log is there as a whole."""
        self.schedule_removal = schedule_removal
        """Calls `remove_some` of a topic's queue until it returns False."""
        self.live_count = 0
        self.live_bytes = 0
        self.by_class = dict.fromkeys(DURABILITIES, 0)
        """The number of topics of each durability class."""
        self.queue_count = 0
        self.leases_in_flight = 0
        self.evicted_count = 0
        """The number of records evicted by a cap or by age, including evictions in a replay."""
        self.tags_to_free: list[object] = []
        """Parts of tag indexes that no topic needs any more, freed a few at a time."""

    def free_some(self) -> bool:
        """Free a few parts of `tags_to_free`; return whether any are left."""
        del self.tags_to_free[-FREED_AT_ONCE:]
        return bool(self.tags_to_free)


_cache_keys = count()


class Topic:
    """The state of one topic in memory, changed by pending entries and by replay."""

    __slots__ = (
        "cache_key",
        "can_evict",
        "can_reject",
        "ceiling",
        "ceiling_logged",
        "ceiling_mark",
        "complete_to",
        "config",
        "cursors",
        "deferred_requests",
        "dropped",
        "durable_floor",
        "earliest_seq",
        "epoch",
        "evict_floor",
        "evicted_to",
        "exported",
        "exported",
        "forgotten_end",
        "has_files",
        "head",
        "is_durable",
        "is_ephemeral",
        "is_frozen",
        "last_read_ms",
        "last_state_read_ms",
        "last_ts",
        "live_bytes",
        "live_count",
        "lost",
        "name",
        "next_config",
        "next_seq",
        "ownership",
        "pending_bytes",
        "pending_writes",
        "producers",
        "protected_seq",
        "queue",
        "raised_at_ms",
        "raised_head",
        "routes",
        "run",
        "runs",
        "schedules",
        "schema",
        "topic_id",
        "totals",
        "ttl_logged",
        "visible",
        "waiters",
        "waiting_count",
        "windows_ms",
    )

    def __init__(self, name: str, topic_id: int, epoch: int, config: TopicConfig) -> None:
        self.name = name
        self.topic_id = topic_id
        self.epoch = epoch
        self.cache_key = next(_cache_keys)
        """The key of its pages in the cache. An adopted topic may have the epoch of another topic."""
        self.visible = False
        self.cursors = _NO_CURSORS
        self.routes = _NO_ROUTES
        """The routes that copy into the topic, by name; most topics share one empty dict."""
        self.schedules = _NO_SCHEDULES
        self.ownership: Owned | None = None
        """What the catalog says of the topic; None until this node asks for a row."""
        self.windows_ms: tuple[int, ...] = ()
        """The idempotency window, then its earlier values, under which keys may still be remembered."""
        self.set_config(config)
        self.next_config = config
        """The configuration after all pending configuration frames are published."""
        self.head = 0
        self.next_seq = 1
        self.earliest_seq = 1
        self.evict_floor = 1
        self.evicted_to: dict[str, int] = {}
        self.ttl_logged = 0
        """The part of `evicted_to["ttl"]` that a replay of the log would restore."""
        self.live_count = self.live_bytes = 0
        self.totals = Totals()
        """The totals of the shard, once the topic is added to it."""
        self.pending_bytes = 0
        self.last_ts = 0
        self.last_read_ms = 0
        self.last_state_read_ms = 0
        """The time at which a client that consumes the topic last asked for its state."""
        self.waiters: dict[Callable[[], None], bool] | None = None
        """Callbacks to call when records are published or the topic is deleted (`wake_queue.py`)."""
        self.lost = LostRanges()
        self.producers: Producers | None = None
        """The known producers; None when the topic never received a numbered write."""
        self.pending_writes = _NO_WRITES
        """Pending numbered writes, by producer, in order; most topics share one empty dict."""
        self.run = TailRun(1, in_memory=self.is_ephemeral)
        """The run that published records are added to."""
        self.runs: list[Run] = [self.run]
        """All runs in seq order, `run` last; a range may be lost between two of them."""
        self.dropped: list[DroppedSegment] = []
        """Segments without a live record; deleted when no snapshot names them."""
        self.exported: list[SegmentName] = []
        """Segments whose `.data` leaves the data directory when no snapshot needs it there."""
        self.has_files = False
        """True when the topic has a directory of segments, or is about to get one."""
        self.forgotten_end = self.durable_floor = 0
        """While the log is synced to less than `forgotten_end`, the topic is durable to `durable_floor`.

        See `durable_seq.py`.
        """
        self.complete_to = epoch
        """Frames with a lower ordinal are in the snapshot; used by replay and by the next checkpoint."""
        self.waiting_count = 0
        self.ceiling = 0
        self.ceiling_logged = 0
        self.ceiling_mark = NEVER
        self.raised_at_ms = 0
        self.raised_head = 0
        self.queue: LeaseQueue | None = None
        if config.type == "queue":
            self.queue = LeaseQueue(self, config.order_by == "tag", config.fair_by == "tag")
        self.deferred_requests: list[DeferredRequest] | None = None
        """The requests that wait while the topic is being deleted, gathered or adopted; else None."""
        self.is_frozen = False
        """Whether requests are deferred although no deletion is pending: nothing about the topic changes."""

    def set_config(self, config: TopicConfig) -> None:
        """Set the configuration, and the plain attributes that every append reads from it."""
        self.config = config
        self.can_evict = bool(config.cap_records or config.cap_bytes) and config.discard == "old"
        self.set_can_reject()
        window_ms = config.idempotency_window_ms
        self.windows_ms = (window_ms, *(old for old in self.windows_ms if old != window_ms))
        self.is_durable = config.durability == "fsync"
        self.is_ephemeral = config.durability == "ephemeral"
        is_checked = config.schema is not None and config.schema_mode != "off"
        self.schema: RecordSchema | None = schema_of(config.schema) if is_checked else None
        """The schema that new records are checked against."""
        self.set_cursors(self.cursors)

    def set_can_reject(self) -> None:
        """Set `can_reject`, with which appends take the slow path that checks caps and the catalog."""
        config = self.config
        is_capped = bool(config.cap_records or config.cap_bytes) and config.discard == "reject"
        self.can_reject = is_capped or (self.ownership is not None and self.ownership.is_near)

    def set_cursors(self, cursors: dict[str, Cursor]) -> None:
        """Set the cursors, by name, and `protected_seq`, up to which records may be evicted."""
        self.cursors = cursors
        protects = self.config.protect_cursors and cursors
        self.protected_seq = min(one.from_seq for one in cursors.values()) if protects else NEVER

    def add_live(self, count: int, size: int) -> None:
        """Add to the numbers of live records and bytes; negative numbers subtract."""
        self.live_count += count
        self.live_bytes += size
        self.totals.live_count += count
        self.totals.live_bytes += size

    def schedule_removal(self) -> None:
        """Have the pending jobs of the queue removed."""
        self.totals.schedule_removal(self)

    def base_priority(self, now_ms: int) -> float:
        """Return the priority of delivery, as configured or by how recently the topic was consumed."""
        idle_ms = now_ms - max(self.last_read_ms, self.last_state_read_ms)
        return base_priority(self.config.priority, self.config.auto_priority, idle_ms)

    def retry_wait_ms(self, deliveries: int) -> int:
        """Return how long a job that was not done waits after so many deliveries.

        A job that is not delivered again does not wait to be parked.
        """
        config = self.config
        if config.retry is None or (config.max_deliveries and deliveries >= config.max_deliveries):
            return 0
        return config.retry.wait_ms(deliveries)

    @property
    def pending_count(self) -> int:
        return self.next_seq - 1 - self.head

    def begin_run(self, first_seq: int) -> None:
        """Begin a new tail run at `first_seq`; the run before it no longer grows."""
        self.run = TailRun(first_seq, in_memory=self.is_ephemeral)
        if self.runs[-1].next_seq > self.runs[-1].first_seq:
            self.runs.append(self.run)
        else:
            self.runs[-1] = self.run

    def run_index(self, seq: int) -> int:
        """Return the index of the run that holds `seq`, or of the first run after it."""
        runs = self.runs
        if seq < runs[0].next_seq:  # The common case of a queue: jobs are taken from the front.
            return 0
        if len(runs) == 1:
            return 1
        return bisect_right(runs, seq, key=_next_seq)

    def run_of(self, seq: int) -> Run | None:
        """Return the run that holds `seq`, or the first run after it."""
        run = self.run
        if run.first_seq <= seq <= self.head:  # The common case.
            return run
        index = self.run_index(seq)
        return self.runs[index] if index < len(self.runs) else None

    def next_live(self, seq: int) -> int:
        """Return the first live seq at or after `seq`, or `head + 1`."""
        if seq < self.earliest_seq:
            seq = self.earliest_seq
        if self.run.first_seq <= seq <= self.head:
            return self.run.next_live(seq)
        runs = self.runs
        for at in range(self.run_index(seq), len(runs)):
            run = runs[at]
            live = run.next_live(max(seq, run.first_seq))
            if live < run.next_seq:
                return live
        return self.head + 1

    def reason_for(self, gap_from: int) -> str:
        """Return why the records from `gap_from` to the floor are missing."""
        reasons = [reason for reason, last in self.evicted_to.items() if last >= gap_from]
        return reasons[0] if len(reasons) == 1 else "mixed"
