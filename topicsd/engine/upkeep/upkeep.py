"""Background upkeep of topics and segments, in rounds.

A round evicts by age, drops dead segments, moves segments to the cold directory, compacts mostly dead ones,
and scrubs. It handles one segment at a time, at a bounded rate on a thread of its own; no kind of work delays
another for much longer than the time between two rounds. A copied segment replaces the old one in its topic
in one step of the event loop, while no checkpoint runs; the old files are dropped once a snapshot names the
new ones. A crash at any moment leaves the state of the last snapshot, and unused copies.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol, TypeGuard, TypeVar

import msgspec

from shared.runtime.disk_thread import Loop
from topicsd.engine.jobs import Background, BackgroundJob
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.retention.eviction_log import evict_expired
from topicsd.engine.retention.retention import drop_run
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.upkeep.compaction import is_worth_rewriting, rewrite_segment
from topicsd.engine.upkeep.scrub_pass import ScrubPass
from topicsd.engine.upkeep.tiering import copy_segment, delete_copy
from topicsd.segment.entry import COLD, DATA, HOT, SegmentDamage, SegmentEntry, SegmentName
from topicsd.segment.store import SegmentStore

logger = logging.getLogger("topicsd.engine")

T = TypeVar("T")

ROUND_SECONDS = 60.0
CHECKPOINT_POLL_SECONDS = 0.05
TOPICS_A_TURN = 500
# The cold directory is taken for the right one if it has at least one of this many segments.
COLD_CHECKED_MAX = 8


class Checkpoints(Protocol):
    """The interface of `Checkpointer` that upkeep uses."""

    @property
    def is_running(self) -> bool: ...

    def start(self) -> None: ...

    def purge(self) -> BackgroundJob[None]: ...


class RateLimit:
    """A rate limit in bytes per second; raises ECANCELED once it is stopped."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._stopped = threading.Event()

    def __call__(self, size: int) -> None:
        if self._stopped.wait(size / self._bytes_per_second):
            raise OSError(errno.ECANCELED, "the shard is closing")

    def stop(self) -> None:
        self._stopped.set()


class Upkeep:
    """The rounds of upkeep of one shard."""

    def __init__(
        self,
        shard: ShardState,
        loop: Loop,
        background: Background,
        checkpoints: Checkpoints,
        hot: SegmentStore,
        cold: SegmentStore | None,
    ) -> None:
        self._shard = shard
        self._loop = loop
        self._background = background
        self._checkpoints = checkpoints
        self._hot = hot
        self._cold = cold
        self._throttle = RateLimit(shard.settings.background_bytes_per_second)
        self._is_awake = False
        self._scrub = ScrubPass(
            shard,
            self._throttle,
            lambda topic, run: self._exists(topic, run) and not self._is_unreachable(run),
        )
        self._has_more = False
        """True if the round ended before all its work was done."""
        self._is_cold_mounted = True
        self._damaged: set[SegmentName] = set()
        """Damaged segments: not moved or rewritten before a restart."""

    def wake(self) -> None:
        """Start the rounds, since there are segments now."""
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_later(ROUND_SECONDS, self.start_round)

    def start_round(self) -> None:
        self._background.start(self._round(), self._on_round_end)

    def stop(self) -> None:
        self._throttle.stop()

    def _on_round_end(self, outcome: Exception | None) -> None:
        if isinstance(outcome, OSError) and outcome.errno == errno.ECANCELED:
            return
        if isinstance(outcome, Exception):
            logger.error("upkeep: round failed, retrying: %s", outcome)
        self._loop.call_later(0.0 if self._has_more else ROUND_SECONDS, self.start_round)

    def _round(self) -> BackgroundJob[None]:
        self._has_more = False
        yield from self._expire()
        # The grace time ends even if nothing is written.
        yield from self._checkpoints.purge()
        has_changed = False
        for topics in self._shard.topics_by_turns():
            for topic in topics:
                has_changed |= _drop_dead(topic) or self._is_active_old(topic)
            yield None
        yield from self._check_cold_dir()
        has_changed |= yield from self._process(self._to_move, self._move)
        has_changed |= yield from self._process(self._to_compact, self._compact)
        if has_changed:
            self._checkpoints.start()
        self._has_more |= yield from self._scrub.some(ROUND_SECONDS)

    def _process(
        self,
        choose: Callable[[Topic], Iterable[SealedRun]],
        work: Callable[[Topic, SealedRun], BackgroundJob[bool]],
    ) -> BackgroundJob[bool]:
        """Work on the chosen segments until the round's time is over; return whether any changed."""
        chosen: list[tuple[Topic, SealedRun]] = []
        for topics in self._shard.topics_by_turns():
            chosen += [(topic, run) for topic in topics for run in choose(topic)]
            yield None
        has_changed = False
        until = self._shard.clock.monotonic() + ROUND_SECONDS
        for topic, run in chosen:
            if self._shard.clock.monotonic() >= until:
                self._has_more = True
                break
            # The segment may have been removed while earlier ones were worked on.
            if self._exists(topic, run):
                has_changed |= yield from self._log_errors(run, work(topic, run))
        return has_changed

    def _check_cold_dir(self) -> BackgroundJob[None]:
        """Check that the cold directory has segments of this shard, and is not an unmounted path.

        Segments moved to an empty mount point would fill another disk, and be unreachable once the right one
        is mounted; and the segments on that disk are not damaged.
        """
        if self._cold is None:
            return
        names: list[SegmentName] = []
        for topics in self._shard.topics_by_turns():
            names += [run.name for topic in topics for run in topic.runs if _is_cold(run)][:COLD_CHECKED_MAX]
            if len(names) >= COLD_CHECKED_MAX:
                break
            yield None
        was_mounted, self._is_cold_mounted = self._is_cold_mounted, True
        if names:
            self._is_cold_mounted = yield partial(_has_any, self._cold, names)
        if was_mounted and not self._is_cold_mounted:
            logger.error("cold directory: none of its segments found, tiering paused: is it mounted?")

    def _is_active_old(self, topic: Topic) -> bool:
        """Return whether the active segment is old enough to be sealed by a checkpoint.

        Only upkeep checks that for topics without writes.
        """
        for run in reversed(topic.runs):
            if isinstance(run, TailRun) and run.source is not None:
                age_ms = self._shard.clock.now_ms() - run.source.entry.first_ts
                return 0 < self._shard.settings.segment_max_age_ms <= age_ms
        return False

    def _expire(self) -> BackgroundJob[None]:
        """Evict by age, also in topics without requests."""
        for number, topic in enumerate(list(self._shard.topics.values())):
            if topic.config.ttl_ms and topic.visible and topic.deferred_requests is None:
                evict_expired(self._shard, topic, self._shard.clock.now_ms())
            if number % TOPICS_A_TURN == 0:
                yield None

    # -- tiering ---------------------------------------------------------------------------------------------

    def _to_move(self, topic: Topic) -> Iterator[SealedRun]:
        """Yield hot sealed segments beyond the limit by count or by bytes, the stricter one."""
        if self._cold is None or not self._is_cold_mounted:
            return
        settings = self._shard.settings
        count = size = 0
        for run in reversed(topic.runs):
            if not isinstance(run, SealedRun):
                continue
            count += 1
            size += run.entry.data_bytes
            is_over = count > settings.hot_retain_segments
            is_over = is_over or 0 < settings.hot_retain_bytes < size
            if is_over and run.entry.tier == HOT and run.name not in self._damaged:
                yield run

    def _move(self, topic: Topic, run: SealedRun) -> BackgroundJob[bool]:
        assert self._cold is not None
        entry, saved = run.entry, run.saved_dead_count
        # The copy has the marks that are on the disk, so its entry counts only those.
        entry_to_copy = msgspec.structs.replace(entry, dead_count=saved)
        work = partial(copy_segment, self._hot, self._cold, run.name, entry_to_copy, self._throttle)
        exists, _ = yield from self._copy(topic, run, work)
        if not exists or run.saved_dead_count != saved:
            yield partial(delete_copy, self._cold, run.name)
            return False
        run.entry = msgspec.structs.replace(run.entry, tier=COLD)
        topic.dropped.append((run.name, HOT))
        return True

    # -- compaction ------------------------------------------------------------------------------------------

    def _to_compact(self, topic: Topic) -> Iterator[SealedRun]:
        for run in topic.runs:
            if not isinstance(run, SealedRun) or run.name in self._damaged or self._is_unreachable(run):
                continue
            if is_worth_rewriting(_entry_now(run)):
                yield run

    def _compact(self, topic: Topic, run: SealedRun) -> BackgroundJob[bool]:
        name, entry = run.name, _entry_now(run)
        marks = bytearray(entry.count) if run.dead is None else bytearray(run.dead)
        below = max(0, topic.earliest_seq - run.first_seq)
        marks[:below] = b"\1" * below
        store = self._cold if entry.tier == COLD else self._hot
        assert store is not None
        work = partial(rewrite_segment, self._shard.segments, store, name, entry, bytes(marks))
        exists, new_entry = yield from self._copy(
            topic, run, partial(work, topic.complete_to, self._throttle)
        )
        if not exists or new_entry is None:
            yield partial(delete_copy, store, name._replace(generation=name.generation + 1))
            return False
        new_name = name._replace(generation=new_entry.generation)
        if run.dead is not None:
            # Add the records deleted meanwhile, in one step for all.
            both = int.from_bytes(marks, "little") | int.from_bytes(run.dead, "little")
            marks = bytearray(both.to_bytes(entry.count, "little"))
        new = SealedRun(self._shard.segments, new_name, new_entry, marks)
        # 0 makes the next checkpoint write a cold segment's marks into the hot directory too, where all marks
        # are: a start needs them even while the cold disk is missing.
        new.saved_dead_count = 0 if entry.tier == COLD else new_entry.dead_count
        new.live_count, new.live_bytes = run.live_count, run.live_bytes
        topic.runs[topic.runs.index(run)] = new
        topic.dropped.append((name, entry.tier))
        return True

    # -- running ---------------------------------------------------------------------------------------------

    def _log_errors(self, run: SealedRun, job: BackgroundJob[bool]) -> BackgroundJob[bool]:
        """Work on one segment; log its error, so that the other segments get their turn."""
        try:
            return (yield from job)
        except OSError as error:
            if error.errno == errno.ECANCELED:
                raise
            logger.warning("upkeep: segment %s skipped: %s", run.name.key(""), error)
            return False
        except SegmentDamage as damage:
            logger.error("upkeep: segment %s skipped: %s", run.name.key(""), damage)
            self._damaged.add(run.name)
            self._shard.damaged_segments.add(run.name)
            return False

    def _copy(
        self, topic: Topic, run: SealedRun, work: Callable[[], T]
    ) -> BackgroundJob[tuple[bool, T | None]]:
        """Run a copy; return whether the segment still exists, and the result.

        Errors are ignored if the segment was removed meanwhile, as its files may not exist.
        """
        outcome: T | None = None
        try:
            outcome = yield from _run_on_thread(work)
            yield from self._wait_for_checkpoint()
        except (OSError, SegmentDamage) as error:
            is_over = isinstance(error, OSError) and error.errno == errno.ECANCELED
            if is_over or self._exists(topic, run):
                raise
        return self._exists(topic, run), outcome

    def _wait_for_checkpoint(self) -> BackgroundJob[None]:
        """Wait until no checkpoint is under way: the runs that it captured must not be replaced."""
        while self._checkpoints.is_running:
            yield CHECKPOINT_POLL_SECONDS

    def _is_unreachable(self, run: SealedRun) -> bool:
        return run.entry.tier == COLD and (self._cold is None or not self._is_cold_mounted)

    def _exists(self, topic: Topic, run: SealedRun) -> bool:
        return self._shard.topics_by_id.get(topic.topic_id) is topic and any(one is run for one in topic.runs)


def _is_cold(run: Run) -> TypeGuard[SealedRun]:
    return isinstance(run, SealedRun) and run.entry.tier == COLD


def _has_any(store: SegmentStore, names: list[SegmentName]) -> bool:
    return any(store.exists(name.key(DATA)) for name in names)


def _drop_dead(topic: Topic) -> bool:
    """Drop segments without live records, anywhere in the topic; return whether there were any."""
    dead = [run for run in topic.runs if isinstance(run, SealedRun) and not run.live_count]
    for run in dead:
        drop_run(topic, run)
        topic.runs.remove(run)
    return bool(dead)


def _run_on_thread(work: Callable[[], T]) -> BackgroundJob[T]:
    """Run work on the thread; raise the damage that it found."""
    outcome = yield partial(_damage_as_outcome, work)
    if isinstance(outcome, SegmentDamage):
        raise outcome
    return outcome  # type: ignore[no-any-return]


def _damage_as_outcome(work: Callable[[], T]) -> T | SegmentDamage:
    try:
        return work()
    except SegmentDamage as damage:
        return damage


def _entry_now(run: SealedRun) -> SegmentEntry:
    return msgspec.structs.replace(
        run.entry, live_count=run.live_count, live_bytes=run.live_bytes, dead_count=run.saved_dead_count
    )
