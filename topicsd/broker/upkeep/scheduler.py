"""The scheduler of upkeep: visits the shared topics of a catalog, and vacuums their store now and then.

U1  A pass lists the topics, page by page, and visits those that are due in random order, so that several
    processes rarely meet. Each topic is visited by one worker of a process at a time; a claim keeps other
    processes away, which move on. After the listing a pass takes at most `pass_seconds`, and the visits that
    run; the next one begins at once when topics are due. So no number of visits delays the listing.
U2  A topic is visited once after the start, so that what a process began that is gone is finished. Later it
    is due while it has records that are not compacted, or when its TTL ends, at most once in `pass_seconds`.
    A visit that finds nothing to do doubles the pause before the next one. So a topic without writes and
    without pending records costs nothing but its place in the listing, and one with pending records a visit
    an hour.
U3  Visits and listings list nothing in the store (R7). A vacuum does, once in `vacuum_seconds` over all
    processes (X5).
U4  An error ends one visit. The next one finds everything as any other process would (M1).
U5  A stop interrupts visits between two calls: claims are released, and objects without an extent are left
    for vacuum.
U6  When the catalog has no clock, nothing is done while the clock of this node differs from that of the store
    (`topicsd/broker/upkeep/store_clock.py`).

All state is changed on the event loop. Calls to store and catalog are made on the threads of a pool.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from shared.runtime.clock import Clock
from shared.runtime.disk_thread import DiskThread, Loop, SystemDiskThread
from shared.runtime.log_setup import fields
from shared.runtime.retries import Retries
from topicsd.broker.steps import BlockingSteps, Pool, Resume, Steps, run, together
from topicsd.broker.upkeep.blob_vacuum import GRACE_MS, BlobVacuum
from topicsd.broker.upkeep.compaction_choice import CompactorLimits
from topicsd.broker.upkeep.compactor import CompactionReport, Compactor, UpkeepAbandoned
from topicsd.broker.upkeep.stages import Staged
from topicsd.broker.upkeep.store_clock import StoreClock
from topicsd.broker.upkeep.upkeep_counts import UpkeepCounts
from topicsd.catalog.shared.shared_catalog import TOPICS_AT_ONCE, SharedCatalog, SharedTopic
from topicsd.store.object_store import ObjectStore

T = TypeVar("T")

WAIT_MS: Final = 45 * 60_000
"""With the age at which slices may be merged, an hour: a slow topic gets one object an hour."""
MERGES_MAX: Final = 8
"""Objects of one visit; a topic with more to merge is visited again, after others."""
ACTIVE_DOUBLINGS: Final = 3
IDLE_SECONDS: Final = 3600.0
NEVER: Final = float("inf")

logger = logging.getLogger("topicsd.broker")


class UpkeepLimits(NamedTuple):
    workers: int = 2
    pass_seconds: float = 60.0
    vacuum_seconds: float = 3600.0
    """0 runs no vacuum."""
    grace_ms: int = GRACE_MS
    compactor: CompactorLimits = CompactorLimits(wait_ms=WAIT_MS)
    has_catalog_clock: bool = True
    """Without one, as in a key-value store, the clock of this node must agree with that of the store (U6)."""
    seed_topics: tuple[str, ...] = ()
    """Topics that are visited also when the listing fails."""


class _Target:
    """A topic that is visited."""

    __slots__ = (
        "due_at",
        "is_running",
        "is_seed",
        "is_visited",
        "listing",
        "obstacle",
        "pauses",
        "seen",
        "visited_at",
    )

    def __init__(self, is_seed: bool = False) -> None:
        self.is_seed = is_seed
        self.seen: tuple[int, int, int] | None = None
        """Incarnation, head and version of the configuration, as the last listing has them."""
        self.listing = 0
        self.due_at = 0.0
        self.visited_at = 0.0
        self.is_visited = self.is_running = False
        self.pauses = 0
        """Visits in a row that found nothing to do."""
        self.obstacle = ""
        """What was logged last; a slice that cannot be merged is logged once."""


class UpkeepScheduler:
    def __init__(
        self,
        clock: Clock,
        loop: Loop,
        store: ObjectStore,
        catalog: SharedCatalog,
        retries: Callable[[], Retries],
        limits: UpkeepLimits,
        name: str,
        thread: Callable[[str], DiskThread] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`name` is unique among all processes that compact; `thread` starts a thread by name."""
        start = partial(SystemDiskThread, loop) if thread is None else thread
        self._clock = clock
        self._loop = loop
        self._catalog = catalog
        self._limits = limits
        self._random = random.Random() if rng is None else rng
        self._compactor = Compactor(name, store, catalog, retries, limits.compactor)
        self._vacuum = BlobVacuum(store, catalog, retries, limits.grace_ms)
        self._store_clock = StoreClock(clock, store, retries)
        self._pool = Pool([start(f"upkeep-{number}") for number in range(limits.workers)])
        # Of its own: a vacuum lists and deletes for long.
        self._vacuum_pool = Pool([start("vacuum")])
        self._targets = {topic: _Target(is_seed=True) for topic in limits.seed_topics}
        self._listing = 0
        self._listed_to = ""
        self._pending = 0, 0
        """The topics and records of this listing that are not compacted."""
        self._running = 0
        self._is_stopping = False
        self._sleepers: dict[object, Resume] = {}
        self._on_stopped: Callable[[], object] = lambda: None
        self.is_listing_failed = False
        self.counts = UpkeepCounts()

    def start(self) -> None:
        self._run_always(self._passes())
        if self._limits.vacuum_seconds:
            self._run_always(self._vacuums())

    def stop(self, done: Callable[[], object] = lambda: None) -> None:
        """Interrupt what runs (U5), then stop the threads and call `done`."""
        self._is_stopping = True
        self._on_stopped = done
        for timer, resume in list(self._sleepers.items()):
            del self._sleepers[timer]
            self._loop.call_soon(resume, None)
        if not self._running:
            self._loop.call_soon(self._stop_threads)

    def _run_always(self, steps: Steps[None]) -> None:
        self._running += 1

        def end(outcome: OSError | None) -> None:
            if isinstance(outcome, OSError):
                logger.error("upkeep: ended: unexpected error: %s", outcome)
            self._running -= 1
            if self._is_stopping and not self._running:
                self._stop_threads()

        run(steps, end)

    def _stop_threads(self) -> None:
        self._pool.stop()
        self._vacuum_pool.stop()
        self._on_stopped()

    def _sleep(self, seconds: float, resume: Resume) -> None:
        timer = object()

        def end() -> None:
            if self._sleepers.pop(timer, None) is not None:
                resume(None)

        self._sleepers[timer] = resume
        self._loop.call_later(seconds, end)

    # -- passes

    def _passes(self) -> Steps[None]:
        while not self._is_stopping:
            try:
                yield from self._discover()
            except OSError as error:
                self.is_listing_failed = True
                self._on_error("listing", error)
            is_clock_right = yield from self._is_clock_right()
            until = self._clock.monotonic() + self._limits.pass_seconds
            due: list[str] = []
            while is_clock_right and (due := self._due()) and self._clock.monotonic() < until:
                self._random.shuffle(due)
                workers = [partial(run, self._work(due, until)) for _ in range(self._limits.workers)]
                yield together(workers)
            self.counts.passes += 1
            if not due and not self._is_stopping:
                yield partial(self._sleep, self._limits.pass_seconds)

    def _discover(self) -> Steps[None]:
        """List the topics, from where an interrupted listing ended (U1)."""
        if not self._listed_to:
            self._listing += 1
            self._pending = 0, 0
        while not self._is_stopping:
            page = yield from self._calls(self._pool, self._list_page(self._listed_to))
            for topic in page or ():
                self._note(topic)
            if not page:
                break
            self._listed_to = page[-1].name
        if self._is_stopping:
            return
        self._listed_to = ""
        self.is_listing_failed = False
        for name in [name for name, one in self._targets.items() if one.listing != self._listing]:
            if not self._targets[name].is_seed:
                del self._targets[name]
        self.counts.topics = len(self._targets)
        self.counts.pending_topics, self.counts.pending_records = self._pending

    def _list_page(self, after: str) -> BlockingSteps[list[SharedTopic]]:
        page: list[SharedTopic] = yield Staged("list", partial(self._catalog.list, "", after, TOPICS_AT_ONCE))
        return page

    def _note(self, topic: SharedTopic) -> None:
        """Note what a listing says of a topic, and when it is due (U2)."""
        target = self._targets.setdefault(topic.name, _Target())
        target.listing = self._listing
        pending = topic.head - max(topic.compacted_to, topic.first_seq - 1)
        if pending > 0:
            self._pending = self._pending[0] + 1, self._pending[1] + pending
        seen = topic.incarnation, topic.head, topic.config_version
        if seen != target.seen:
            target.seen = seen
            target.pauses = min(target.pauses, ACTIVE_DOUBLINGS)
            target.due_at = min(target.due_at, target.visited_at + self._pause(target))

    def _due(self) -> list[str]:
        if self._is_stopping:
            return []
        now = self._clock.monotonic()
        return [name for name, one in self._targets.items() if one.due_at <= now and not one.is_running]

    def _pause(self, target: _Target) -> float:
        return min(self._limits.pass_seconds * 2.0**target.pauses, IDLE_SECONDS)

    def _is_clock_right(self) -> Steps[bool]:
        """Return whether the times of this node may be used (U6)."""
        if self._limits.has_catalog_clock:
            return True
        try:
            yield from self._calls(self._pool, self._check_clock())
        except OSError as error:
            self._on_error("clock", error)
            return False
        return not self._is_stopping

    def _check_clock(self) -> BlockingSteps[None]:
        yield Staged("lookup", self._store_clock.check)

    # -- visits

    def _work(self, due: list[str], until: float) -> Steps[None]:
        """Visit topics of the list until it is empty or the pass ends; other workers take from it as well."""
        while due and not self._is_stopping and self._clock.monotonic() < until:
            name = due.pop()
            target = self._targets.get(name)
            if target is None or target.is_running:
                continue
            target.is_running = True
            try:
                yield from self._visit(name, target)
            finally:
                target.is_running = False

    def _visit(self, name: str, target: _Target) -> Steps[None]:
        report: CompactionReport | None = None
        for _ in range(MERGES_MAX):
            self.counts.runs += 1
            try:
                report = yield from self._calls(self._pool, self._compactor.compact(name))
            except OSError as error:
                report = None
                self._on_error(f"topic {name}", error)
                break
            if report is None:
                return
            self._count(name, report)
            if report.obstacle and report.obstacle != target.obstacle:
                target.obstacle = report.obstacle
                self.counts.blocked_extents += 1
                logger.error("compaction: topic %s stopped: %s", name, report.obstacle)
            if report.outcome != "merged":
                break
        self._plan(name, target, report)

    def _count(self, name: str, report: CompactionReport) -> None:
        counts = self.counts
        counts.recovered += report.is_recovery
        counts.busy += report.outcome == "busy"
        counts.refused += report.outcome in ("refused", "claim lost")
        if report.outcome == "merged":
            counts.merged += 1
            counts.merged_extents += report.extents
            counts.merged_bytes += report.byte_count
            merged = fields(topic=name, extents=report.extents, bytes=report.byte_count)
            logger.info("compaction: merged", extra=merged)
        if report.removed_records:
            counts.trims += 1
            counts.trimmed_records += report.removed_records
            logger.info("retention: trimmed", extra=fields(topic=name, records=report.removed_records))

    def _plan(self, name: str, target: _Target, report: CompactionReport | None) -> None:
        """Decide when a topic is due again (U2)."""
        now = self._clock.monotonic()
        target.visited_at = now
        if report is not None and report.outcome == "merged":
            target.pauses, target.due_at = 0, now
            return
        if report is not None and report.outcome == "no topic" and not target.is_seed:
            self._targets.pop(name, None)
            return
        target.due_at = now + self._pause(target)
        is_idle = report is not None and report.outcome == "nothing" and not report.pending_records
        if is_idle:
            target.due_at = NEVER
        elif report is None or report.outcome == "nothing":
            target.pauses += 1
        if report is not None and report.due_in_ms is not None:
            due_in = max(self._limits.pass_seconds, report.due_in_ms / 1000)
            target.due_at = min(target.due_at, now + due_in)

    # -- vacuum

    def _vacuums(self) -> Steps[None]:
        """Run a pass each interval, at a random time in it; the first one in the first interval."""
        seconds = self._limits.vacuum_seconds
        yield partial(self._sleep, self._random.random() * min(seconds, 60.0))
        while not self._is_stopping:
            report = None
            try:
                if (yield from self._is_clock_right()):
                    number = int(self._clock.now_ms() / 1000 / seconds)
                    report = yield from self._calls(self._vacuum_pool, self._vacuum.run_pass(number))
            except OSError as error:
                self._on_error("vacuum", error)
            else:
                if report is not None:
                    self.counts.vacuums += 1
                    self.counts.vacuumed_objects += report.orphans
                    self.counts.vacuumed_bytes += report.byte_count
                    deleted = fields(objects=report.orphans, bytes=report.byte_count, kept=report.young)
                    logger.info("vacuum: done", extra=deleted)
            if not self._is_stopping:
                yield partial(self._sleep, seconds * (0.5 + self._random.random() / 2))

    # -- calls

    def _calls(self, pool: Pool, job: BlockingSteps[T]) -> Steps[T | None]:
        """Run blocking steps on a pool, and note their times; None when a stop interrupted them (U5)."""
        result: Any = None
        is_abandoned = False
        while True:
            try:
                if self._is_stopping and not is_abandoned:
                    is_abandoned = True
                    call = job.throw(UpkeepAbandoned())
                else:
                    call = job.throw(result) if isinstance(result, OSError) else job.send(result)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except UpkeepAbandoned:
                return None
            began_at = self._clock.monotonic()
            try:
                result = yield pool.call(call)
            except OSError as error:
                result = error
            if isinstance(call, Staged):
                self.counts.stage_seconds[call.stage] += self._clock.monotonic() - began_at

    def _on_error(self, what: str, error: OSError) -> None:
        self.counts.failed += 1
        logger.warning("upkeep: %s: failed, repeated later: %s", what, error)
