"""The data of a running shard, with the log, wakeups and caches that requests and background jobs need."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from shared.contract.errors import Refusal, throttled
from shared.contract.topic_config import TopicConfig
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop, Threads
from shared.settings.settings import Settings
from topicsd.engine.jobs import Background, Backlog
from topicsd.engine.ownership.catalog_work import CatalogWork
from topicsd.engine.ownership.departed import refuse_departed
from topicsd.engine.ownership.new_names import NewNames
from topicsd.engine.pending import PendingControl, Refuse, noop
from topicsd.engine.queue.removal import Removals
from topicsd.engine.queue.timers import QueueTimers
from topicsd.engine.read.page_cache import PageCache
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.schema.mismatches import SchemaMismatches
from topicsd.engine.shard_data import ShardData
from topicsd.engine.topic import NEVER, DeferredRequest, Topic, Totals, remove_at_once
from topicsd.engine.transfer.dead_letter_stamp import STAMP_BYTES_MAX
from topicsd.engine.wakeups.creations import Creations
from topicsd.engine.wakeups.wake_queue import WakeQueue
from topicsd.log.batch import CommitEntry
from topicsd.log.control_frame import ControlPayload, encode_control
from topicsd.log.files import LogFiles
from topicsd.log.group_commit import GroupCommit
from topicsd.segment.entry import COLD, SegmentDamage
from topicsd.segment.reader import SegmentReader

if TYPE_CHECKING:
    from topicsd.engine.queue.claim import ClaimGroup
    from topicsd.engine.queue.waiting_claims import ClaimLine
    from topicsd.engine.read.fill_page import Fetched
    from topicsd.engine.routes.route import RouteState
    from topicsd.engine.write.append import PendingAppend

T = TypeVar("T")

# All lease numbers from here on have the same encoded size in a frame.
_LEASES_FROM = 1 << 61

_EPOCH_TAG_BITS = 11


class SeenHead(NamedTuple):
    """The head of a topic at a monotonic time."""

    head: int
    at: float


class ShardState(ShardData):
    """The state of a running shard.

    It is constructed for recovery; `open` adds the log and the runner of jobs when that is over.
    """

    log: GroupCommit
    jobs: Background
    """The runner of jobs that read and write through the engine's operations."""

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
        self._is_open = False
        totals = Totals(self._synced_position, self._schedule_removal)
        super().__init__(clock, settings, files, segments, totals)
        self.number = number
        self.loop = loop
        self.threads = threads
        self.wake_queue = WakeQueue(loop, clock)
        self.queue_timers = QueueTimers(loop, clock, self.wake_queue)
        self.creations = Creations()
        self.removals = Removals(loop, self._on_removal_end)
        self.pages = PageCache(settings.page_cache_bytes)
        self.stamped_settings = _with_room_for_stamp(settings)
        """The settings for records to whose meta the server added a stamp."""
        self.pending_keys: dict[bytes, PendingAppend] = {}
        """Pending writes with an idempotency key, by the digest of the key."""
        self.raised_ceilings: dict[Topic, SeenHead | None] = {}
        """Topics whose ceiling may be above their head, with the head at the last check; oldest first."""

        self.referable_from = 0
        """The log position from which records may be referred to (`reference.py`).

        The later of the start of this run and the start of the newest checkpoint.
        """
        self._route_listeners: list[Callable[[RouteState], object]] = []
        self._on_schedules: Callable[[], object] = noop
        self._creation_guards: list[Callable[[str], Refusal | None]] = []
        self.next_lease = _LEASES_FROM | secrets.randbits(61)
        """The next lease number. It starts at random, so that no number of an earlier run is valid again."""
        self.parked: Backlog[Topic] = Backlog()
        """Queues with parked jobs to move to their dead-letter topics; the log has these jobs as parked."""

        self.job_reads: dict[SealedRun, list[Callable[[Fetched], None]]] = {}
        """Callbacks that wait for the records of jobs, by the run that is being read."""
        self.claim_groups: dict[Topic, ClaimGroup] = {}
        self.claim_lines: dict[Topic, ClaimLine] = {}
        """By queue: claims that are served together, and claims that wait for a job."""
        self.is_draining = False
        """True when the shard is about to stop: claims do not wait for others."""

        self.catalog_work = CatalogWork(loop)
        """The topics whose rows in the catalog have to be created or changed."""
        self.new_names = NewNames(self, loop)
        self.epoch_tag = int.from_bytes(secrets.token_bytes(2)) >> (16 - _EPOCH_TAG_BITS)
        """The bits of this run in the epochs of new topics, on a shard with a catalog."""

        self.topics_to_seal: set[Topic] = set()
        """Topics whose active segment the next checkpoint seals, since they are about to be moved."""
        self.frozen: dict[Topic, None] = {}
        """Topics whose requests are deferred while they are gathered or adopted."""
        self.departures: dict[str, Refusal] = {}
        """The refusal of requests for topics that departed since the start, by name."""
        self.exported = (0, 0)
        """The segments that have objects in the store, and their bytes, as of the last round of upkeep."""
        self.store_problem = ""
        """Why nothing is exported to the object store at present; empty when nothing is wrong."""
        self.released_stems: set[str] | None = None
        """With a catalog: the stems of objects to delete that the catalog does not name any more."""
        self.mismatches = SchemaMismatches()
        self.unlogged_floors: dict[Topic, None] = {}
        """Topics with an eviction that readers have seen but a full disk kept out of the log."""

    def _on_removal_end(self, topic: Topic) -> None:
        """Wake claims after a removal: jobs that were blocked by removed jobs may be ready."""
        if topic.waiters is not None:
            self.wake_queue.wake(topic)
        self.queue_timers.refresh(topic)

    def open(self, log: GroupCommit, jobs: Background) -> None:
        """End the recovery: from now on the shard logs its changes."""
        self.log = log
        self.jobs = jobs
        self.referable_from = log.batch.next_position
        self._is_open = True

    def _synced_position(self) -> int:
        return self.log.synced_position if self._is_open else NEVER

    def _schedule_removal(self, topic: Topic) -> None:
        if self._is_open:
            self.removals.wake(topic)
        else:
            remove_at_once(topic)

    def _remove_name(self, topic: Topic) -> None:
        super()._remove_name(topic)
        self.removals.forget(topic)
        self.raised_ceilings.pop(topic, None)
        self.unlogged_floors.pop(topic, None)
        self.topics_to_seal.discard(topic)
        for route in topic.routes.values():
            self.report_route(route)

    def delete_topic(self, topic: Topic, has_moved: bool = False) -> None:
        super().delete_topic(topic, has_moved)
        if self.to_forget:
            self.catalog_work.wake()

    def follow_routes(self, listener: Callable[[RouteState], object]) -> None:
        """Call `listener` for each new, changed or deleted route, when the log has the change."""
        self._route_listeners.append(listener)

    def report_route(self, route: RouteState) -> None:
        for listener in self._route_listeners:
            listener(route)

    def follow_schedules(self, listener: Callable[[], object]) -> None:
        """Call `listener` when a schedule may be due earlier than before."""
        self._on_schedules = listener

    def note_schedules(self, topic: Topic) -> None:
        super().note_schedules(topic)
        self._on_schedules()

    def set_config(self, topic: Topic, config: TopicConfig) -> None:
        super().set_config(topic, config)
        if topic.queue is not None and topic.queue.parked:
            self.parked.add(topic)  # The change may have named a dead-letter topic for them.

    def note(self, topic: Topic, frame: bytes, entry: CommitEntry, is_urgent: bool = False) -> None:
        """Log a frame of a topic that no request waits for.

        The topic must not have a pending deletion: no frame of a topic follows its deletion in the log.
        """
        assert topic.deferred_requests is None
        self.log.join_control_frame(frame, entry, is_urgent)

    def join_control(
        self, topic: Topic, control: ControlPayload, entry: PendingControl, waits_for_sync: bool = False
    ) -> None:
        """Log a request's change to a topic, in the class of the topic.

        The entry of an ephemeral topic joins the log without a frame.
        """
        waits = waits_for_sync or topic.is_durable or self.must_wait(topic)
        if waits:
            entry.count_as_waiting()
        frames = []
        if not topic.is_ephemeral:
            durable = topic.is_durable
            frames.append(encode_control(control, topic_id=topic.topic_id, ts=topic.last_ts, durable=durable))
        self.log.join(frames, sum(map(len, frames)), len(frames), entry, waits)

    def join_config(self, topic: Topic, control: ControlPayload, entry: PendingControl) -> None:
        """Log a change of configuration: synced, whatever the class of the topic."""
        frame = encode_control(control, topic_id=topic.topic_id, ts=topic.last_ts, durable=True)
        self.join_durable([frame], entry)

    def join_durable(self, frames: list[bytes], entry: PendingControl) -> None:
        """Log frames together: synced, whatever the class of the topic."""
        entry.count_as_waiting()
        self.log.join(frames, sum(map(len, frames)), len(frames), entry, wait_for_sync=True)

    def read_on_thread(
        self, run: SealedRun, read: Callable[[], T], on_result: Callable[[T | OSError], None]
    ) -> None:
        """Read a sealed run on the thread of its tier, so that a slow store delays no local read."""
        is_away = run.entry.tier == COLD or self.segments.is_distrusted(run.name)
        thread = self.threads.cold if is_away else self.threads.read
        thread.submit(read, on_result)

    def load_index(self, run: SealedRun, on_loaded: Callable[[SegmentDamage | OSError | None], None]) -> None:
        """Load the index of a sealed run on a thread; `on_loaded` gets the failure, if any."""
        self.read_on_thread(run, partial(_load_index, run), on_loaded)

    def defer(self, topic: Topic, retry: Callable[[], object], refuse: Refuse) -> None:
        """Defer a request while its topic is being deleted, gathered or adopted.

        Refuse it if too many wait.
        """
        assert topic.deferred_requests is not None
        if len(topic.deferred_requests) < self.settings.max_waiting_requests:
            topic.deferred_requests.append(DeferredRequest(retry, refuse))
        else:
            change = "moved" if topic.is_frozen else "deleted"
            refuse(throttled(f'topic "{topic.name}" is being {change} and too many requests wait for it'))

    def watch_ceiling(self, topic: Topic, now: float | None = None) -> None:
        """Check the ceiling of the topic again later; `now` is the time of the present check."""
        self.raised_ceilings.pop(topic, None)
        self.raised_ceilings[topic] = None if now is None else SeenHead(topic.next_seq - 1, now)

    def next_epoch(self) -> int:
        """Return the epoch of a topic whose creation joins the log next.

        It is the ordinal of the creation, unless that might be the epoch of an adopted topic. With a catalog,
        other nodes may create a topic of the same name: then it is a millisecond that this shard has not used
        before, and some bits of this run. It grows too, and is below 2**53 for clients whose numbers have no
        more bits.
        """
        if not self.catalog_work.is_started:
            return max(self.log.batch.next_ordinal, self.epoch_floor + 1)
        unused_ms = (self.epoch_floor >> _EPOCH_TAG_BITS) + 1
        return max(unused_ms, self.clock.now_ms()) << _EPOCH_TAG_BITS | self.epoch_tag

    def raise_epoch_floor(self, epoch: int) -> None:
        """Give only epochs above this one to topics that are created from now on."""
        self.epoch_floor = max(self.epoch_floor, epoch)

    def guard_creations(self, guard: Callable[[str], Refusal | None]) -> None:
        """Call `guard` with the name of each topic before it is created; its refusal prevents that."""
        self._creation_guards.append(guard)

    def refuse_creation(self, name: str) -> Refusal | None:
        """Return the refusal of a new topic of this name, or None."""
        for guard in self._creation_guards:
            refusal = guard(name)
            if refusal is not None:
                return refusal
        return None

    def departure_of(self, name: str) -> Refusal | None:
        """Return the refusal of requests for a topic that is somewhere else; None if there is none."""
        departed = self.departed.get(name)
        if departed is None:
            return self.departures.get(name)
        self.new_names.look_up(name)
        return refuse_departed(departed)

    @property
    def topic_count(self) -> int:
        """The number of topics, with those that are about to be created."""
        return len(self.topics) + len(self.new_names)

    def show(self, topic: Topic) -> None:
        """Make a topic visible whose creation is in the log."""
        if not topic.visible:
            topic.visible = True
            self.creations.note(topic.name)

    def visible_topic(self, name: str) -> Topic | None:
        topic = self.topics.get(name)
        return topic if topic is not None and topic.visible else None

    def is_live(self, topic: Topic) -> bool:
        """Return whether the topic exists and has no pending deletion; a frozen one is live."""
        has_deletion = topic.deferred_requests is not None and not topic.is_frozen
        return self.topics.get(topic.name) is topic and not has_deletion

    def must_wait(self, topic: Topic) -> bool:
        """Return whether an entry that joins now waits for a sync, whatever its class."""
        return topic.waiting_count > 0 or self.log.is_lagging


def _with_room_for_stamp(settings: Settings) -> Settings:
    return msgspec.structs.replace(
        settings,
        max_meta_bytes=settings.max_meta_bytes + STAMP_BYTES_MAX,
        max_record_bytes=settings.max_record_bytes + STAMP_BYTES_MAX,
    )


def _load_index(run: SealedRun) -> SegmentDamage | None:
    try:
        run.load_index()
    except SegmentDamage as damage:
        return damage
    return None
