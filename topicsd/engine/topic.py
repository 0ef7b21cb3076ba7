"""One topic of the shard: where its log begins and ends, what of it is alive, and what it was promised.

The numbers, and who moves them:

T1  Seqs up to `head` are published. From there to `next_seq` they are given out and on their way.
T2  `earliest_seq` is the first live seq, `head + 1` when there is none. It rises on loss and on deletes.
T3  `evicted_to` says, by reason, the last live seq that was lost involuntarily. `evict_floor` is the
    highest of them plus one: it rises on involuntary loss only, so `evict_floor <= earliest_seq`.
T4  No seq above `ceiling` was ever given out without a sync (see `head_ceiling.py`).
T5  While some of its entries wait for a sync (`waiting_count`) those behind them wait too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from shared.contract.topic_config import DURABILITIES, TopicConfig
from topicsd.engine.queue.lease_queue import LeaseQueue
from topicsd.engine.records.lost_range import LostRanges
from topicsd.engine.records.run import Run
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.wakeups.priority import base_priority
from topicsd.engine.write.producers import Producers
from topicsd.log.control_frame import Cursor
from topicsd.segment.entry import SegmentName

if TYPE_CHECKING:
    from topicsd.engine.routes.route import Forward
    from topicsd.engine.write.append import PendingAppend

NEVER = 1 << 63
_NONE: Final[dict[str, list[PendingAppend]]] = {}
_NO_CURSORS: Final[dict[str, Cursor]] = {}
_NO_FORWARDS: Final[dict[str, Forward]] = {}


def _next_seq(run: Run) -> int:
    return run.next_seq


# Each is the tags of some two thousand records.
FREED_AT_ONCE = 8


class Totals:
    """What is alive in all topics of a shard."""

    __slots__ = (
        "by_class",
        "evicted_count",
        "gone_tags",
        "leases_in_flight",
        "live_bytes",
        "live_count",
        "queue_count",
        "synced_position",
    )

    def __init__(self) -> None:
        self.live_count = 0
        self.live_bytes = 0
        self.by_class = dict.fromkeys(DURABILITIES, 0)
        """How many topics are of each durability class."""
        self.queue_count = 0
        self.leases_in_flight = 0
        self.evicted_count = 0
        """Records that a cap or their age took out, also in a replay."""
        self.synced_position: Callable[[], int] = lambda: NEVER
        """How far the log is on the disk itself; all of a log that is replayed is."""
        self.gone_tags: list[object] = []
        """Parts of tag indexes that no topic needs, freed a few at a time."""

    def free_some(self) -> bool:
        """Free some of what is gone; return whether there is more."""
        del self.gone_tags[-FREED_AT_ONCE:]
        return bool(self.gone_tags)


class Topic:
    __slots__ = (
        "ceiling",
        "ceiling_logged",
        "ceiling_mark",
        "complete_to",
        "config",
        "cursors",
        "dropped",
        "durable_floor",
        "earliest_seq",
        "epoch",
        "evict_floor",
        "evicted_to",
        "evicts",
        "forgotten_end",
        "forwards",
        "has_files",
        "head",
        "is_durable",
        "is_ephemeral",
        "last_read_ms",
        "last_ts",
        "leaving",
        "live_bytes",
        "live_count",
        "looked_at_ms",
        "lost",
        "name",
        "next_config",
        "next_seq",
        "pending_bytes",
        "producers",
        "producing",
        "protected_seq",
        "queue",
        "raised_at_ms",
        "raised_head",
        "rejects",
        "run",
        "runs",
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
        self.visible = False
        self.cursors = _NO_CURSORS
        self.forwards = _NO_FORWARDS
        """Those that copy into it, by name; most topics share the empty one."""
        self.windows_ms: tuple[int, ...] = ()
        """The idempotency window and those that it had before, under which keys may be remembered."""
        self.set_config(config)
        self.next_config = config
        """What it will be when the configuration frames that are on their way are published."""
        self.head = 0
        self.next_seq = 1
        self.earliest_seq = 1
        self.evict_floor = 1
        self.evicted_to: dict[str, int] = {}
        self.ttl_logged = 0
        """How much of `evicted_to["ttl"]` replay would find."""
        self.live_count = 0
        self.live_bytes = 0
        self.totals = Totals()
        """Of its shard, once it is one of the topics there."""
        self.pending_bytes = 0
        self.last_ts = 0
        self.last_read_ms = 0
        self.looked_at_ms = 0
        """When its state was asked for by somebody who uses it."""
        self.waiters: dict[Callable[[], None], bool] | None = None
        """Called once something was published, or the topic is gone (`watch.py`)."""
        self.lost = LostRanges()
        self.producers: Producers | None = None
        """None when nobody ever numbered a write to it."""
        self.producing = _NONE
        """Numbered writes on their way, by their producer, in order; most topics share the empty one."""
        self.run = TailRun(1, in_memory=self.is_ephemeral)
        """What is published goes behind it."""
        self.runs: list[Run] = [self.run]
        """In their order, the running one last; between two of them a range may be lost."""
        self.dropped: list[tuple[SegmentName, str]] = []
        """Segments in which nothing is alive, and their tiers; their files go when no snapshot names them."""
        self.has_files = False
        """It has a directory of segments, or is about to."""
        self.forgotten_end = self.durable_floor = 0
        """The topic is durable to this seq until the log is synced to that end (`durable_seq.py`)."""
        self.complete_to = epoch
        """Frames with a lower ordinal are in the snapshot: for replay, and for the next checkpoint."""
        self.waiting_count = 0
        self.ceiling = 0
        self.ceiling_logged = 0
        self.ceiling_mark = NEVER
        self.raised_at_ms = 0
        self.raised_head = 0
        self.queue = LeaseQueue(self, config.order_by == "tag") if config.type == "queue" else None
        self.leaving: list[Callable[[], Any]] | None = None
        """Set while its deletion is on its way: what comes meanwhile is for the next topic of that name."""

    def set_config(self, config: TopicConfig) -> None:
        """What it is from here on, with what every append asks of it as plain attributes."""
        self.config = config
        is_capped = bool(config.cap_records or config.cap_bytes)
        self.evicts = is_capped and config.discard == "old"
        self.rejects = is_capped and config.discard == "reject"
        window_ms = config.idempotency_window_ms
        self.windows_ms = (window_ms, *(old for old in self.windows_ms if old != window_ms))
        self.is_durable = config.durability == "fsync"
        self.is_ephemeral = config.durability == "ephemeral"
        self.set_cursors(self.cursors)

    def set_cursors(self, cursors: dict[str, Cursor]) -> None:
        """Those that it has from here on, by name. What is in front of `protected_seq`, and that itself, may
        be evicted."""
        self.cursors = cursors
        is_held = self.config.protect_cursors and cursors
        self.protected_seq = min(one.from_seq for one in cursors.values()) if is_held else NEVER

    def add_live(self, count: int, size: int) -> None:
        """So many records more are alive, or with negative numbers fewer."""
        self.live_count += count
        self.live_bytes += size
        self.totals.live_count += count
        self.totals.live_bytes += size

    def base_priority(self, now_ms: int) -> float:
        """What its delivery is worth, by what it was given or by how recently it was consumed."""
        idle_ms = now_ms - max(self.last_read_ms, self.looked_at_ms)
        return base_priority(self.config.priority, self.config.auto_priority, idle_ms)

    @property
    def pending_count(self) -> int:
        return self.next_seq - 1 - self.head

    def begin_run(self, first_seq: int) -> None:
        """What comes from here on is a run of its own; the one before it does not grow any more."""
        self.run = TailRun(first_seq, in_memory=self.is_ephemeral)
        if self.runs[-1].next_seq > self.runs[-1].first_seq:
            self.runs.append(self.run)
        else:
            self.runs[-1] = self.run

    def run_index(self, seq: int) -> int:
        """The place of the run that holds `seq`, or of the first one behind it."""
        runs = self.runs
        if seq < runs[0].next_seq:  # From the front of it jobs are taken.
            return 0
        if len(runs) == 1:
            return 1
        return bisect_right(runs, seq, key=_next_seq)

    def run_of(self, seq: int) -> Run | None:
        """The run that holds `seq`, or the first one behind it."""
        run = self.run
        if run.first_seq <= seq <= self.head:  # As nearly always.
            return run
        index = self.run_index(seq)
        return self.runs[index] if index < len(self.runs) else None

    def next_live(self, seq: int) -> int:
        """The first live seq at or behind `seq`, or `head + 1`."""
        if seq < self.earliest_seq:
            seq = self.earliest_seq
        if self.run.first_seq <= seq <= self.head:
            return self.run.next_live(seq)
        runs = self.runs
        for at in range(self.run_index(seq), len(runs)):
            run = runs[at]
            found = run.next_live(max(seq, run.first_seq))
            if found < run.next_seq:
                return found
        return self.head + 1

    def reason_for(self, gap_from: int) -> str:
        """Why what is missing from `gap_from` to the floor is missing."""
        reasons = [reason for reason, last in self.evicted_to.items() if last >= gap_from]
        return reasons[0] if len(reasons) == 1 else "mixed"
