"""Background upkeep of topics and segments, in rounds.

A round evicts by age, drops dead segments, exports old ones to the object store, compacts mostly dead ones,
merges small ones, deletes objects that are not needed, and scrubs. It does one copy at a time, at a bounded
rate on a thread of its own; no kind of work delays another for much longer than the time between two rounds.
A copied segment replaces the old ones in its topic in one step of the event loop, while no checkpoint runs;
the old files are dropped once a snapshot names the new ones. A crash at any moment leaves the state of the
last snapshot, and unused copies.

An object store that is away, or is not the right one, pauses exports and deletes until a later round finds it
usable. Its segments are neither read nor compacted meanwhile, and nothing else waits for it.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import is_
from typing import Protocol, TypeGuard, TypeVar

import msgspec

from shared.runtime.disk_thread import Loop
from shared.runtime.retries import Retries
from topicsd.engine.jobs import Background, BackgroundJob
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.retention.eviction_log import evict_expired
from topicsd.engine.retention.retention import drop_run
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.upkeep.compaction import (
    RewriteSource,
    is_worth_rewriting,
    rewrite_segments,
    rewritten_name,
)
from topicsd.engine.upkeep.merging import MergeLimits, groups_to_merge
from topicsd.engine.upkeep.scrub_pass import ScrubPass
from topicsd.engine.upkeep.tiering import delete_copy, export_segment
from topicsd.segment.entry import COLD, DATA, HOT, DroppedSegment, SegmentDamage, SegmentEntry, SegmentName
from topicsd.segment.objects import SegmentObjects
from topicsd.segment.store import SegmentStore
from topicsd.store.object_store import ObjectStore, StoreRefused, StoreUnavailable
from topicsd.store.probe import probe_store

logger = logging.getLogger("topicsd.engine")

T = TypeVar("T")

ROUND_SECONDS = 60.0
CHECKPOINT_POLL_SECONDS = 0.05
TOPICS_A_TURN = 500
# The folder of a store is taken for the right one if it has at least one of this many segments.
CHECKED_MAX = 8
# A request to a remote store is repeated for this long; after that the next round tries again.
STORE_RETRY_SECONDS = 10.0
OWNER_EPOCH = 1
"""The owner epoch in the keys of a server without a catalog."""


class Checkpoints(Protocol):
    """The interface of `Checkpointer` that upkeep uses."""

    @property
    def is_running(self) -> bool: ...

    def start(self) -> None: ...

    def purge(self) -> BackgroundJob[None]: ...

    def delete_objects(self, objects: SegmentObjects) -> BackgroundJob[None]: ...


class RateLimit:
    """A rate limit in bytes per second; raises ECANCELED once it is stopped."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._stopped = threading.Event()

    def __call__(self, size: int) -> None:
        self.wait(size / self._bytes_per_second)

    def wait(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
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
        objects: SegmentObjects | None,
        cold: SegmentStore | None = None,
        exports: bool = True,
    ) -> None:
        """Prepare the rounds; `cold` is the folder into which an earlier version moved segments.

        With a catalog the exporter exports: then upkeep only drops local files (`exports` is False).
        """
        self._shard = shard
        self._loop = loop
        self._background = background
        self._checkpoints = checkpoints
        self._hot = hot
        self._objects = objects
        self._cold = cold
        self._exports = exports
        self._throttle = RateLimit(shard.settings.background_bytes_per_second)
        seconds = STORE_RETRY_SECONDS if objects is not None and objects.is_remote else 0.0
        self._retries = Retries(shard.clock.monotonic, self._throttle.wait, seconds)
        self._is_awake = False
        self._scrub = ScrubPass(
            shard,
            self._throttle,
            lambda topic, run: self._exist(topic, [run]) and self._is_scrubbed(run),
        )
        self._has_more = False
        """True if the round ended before all its work was done."""
        self._is_probed = False
        self._limits = MergeLimits.of(shard.settings)
        self.merged_count = 0
        """Segments that were merged into others since the start."""
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
        if _is_canceled(outcome):
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
        exported = size = 0
        for topics in self._shard.topics_by_turns():
            for topic in topics:
                has_changed |= _drop_dead(topic) or self._is_active_old(topic)
                sizes = [run.entry.data_bytes for run in topic.runs if _is_exported(run)]
                exported, size = exported + len(sizes), size + sum(sizes)
            yield None
        self._shard.exported = (exported, size)
        yield from self._check_store()
        has_changed |= yield from self._process(self._to_move, self._move)
        has_changed |= yield from self._process(self._to_compact, self._rewrite)
        has_changed |= yield from self._process(self._to_merge, self._rewrite)
        if has_changed:
            self._checkpoints.start()
        if self._objects is not None and not self._shard.store_problem:
            yield from self._log_store_errors(self._checkpoints.delete_objects(self._objects))
        self._has_more |= yield from self._scrub.some(ROUND_SECONDS)

    def _process(
        self,
        choose: Callable[[Topic], Iterable[list[SealedRun]]],
        work: Callable[[Topic, list[SealedRun]], BackgroundJob[bool]],
    ) -> BackgroundJob[bool]:
        """Work on the chosen segments until the round's time is over; return whether any changed."""
        chosen: list[tuple[Topic, list[SealedRun]]] = []
        for topics in self._shard.topics_by_turns():
            chosen += [(topic, runs) for topic in topics for runs in choose(topic)]
            yield None
        has_changed = False
        until = self._shard.clock.monotonic() + ROUND_SECONDS
        for topic, runs in chosen:
            if self._shard.clock.monotonic() >= until:
                self._has_more = True
                break
            # The segment may have been removed while earlier ones were worked on.
            if self._exist(topic, runs):
                has_changed |= yield from self._log_errors(runs, work(topic, runs))
        return has_changed

    # -- the object store ------------------------------------------------------------------------------------

    def check_store(self) -> None:
        """Start a check of the store, since a shard has opened."""
        if self._objects is not None:
            self._background.start(self._check_store(), self._on_check_end)

    def _on_check_end(self, outcome: Exception | None) -> None:
        if isinstance(outcome, Exception) and not _is_canceled(outcome):
            logger.error("object store: check failed, retrying: %s", outcome)

    def _check_store(self) -> BackgroundJob[None]:
        """Probe the store once, and after a failure again; check that a folder has segments of this shard.

        Segments exported to an empty mount point would fill another disk, and be unreachable once the right
        one is mounted; and the segments on that disk are not damaged.
        """
        if self._objects is None:
            return
        # A read may have noticed that the store is away.
        self._is_probed = self._is_probed and not self._shard.store_problem
        away: list[SealedRun] = []
        for topics in self._shard.topics_by_turns() if not self._objects.is_remote else ():
            away += [run for topic in topics for run in topic.runs if _is_exported(run) or _is_cold(run)]
            if len(away) >= CHECKED_MAX:
                break
            yield None
        problem = yield partial(self._find_problem, self._objects, away[:CHECKED_MAX])
        self._note_problem(problem)

    def _has(self, objects: SegmentObjects, run: SealedRun) -> bool:
        stem = run.entry.object_stem
        if stem:
            return objects.exists(stem + DATA)
        return self._cold is not None and self._cold.exists(run.name.key(DATA))

    def _find_problem(self, objects: SegmentObjects, away: list[SealedRun]) -> str:
        """Return why the store is unusable; empty when it is usable. Runs on a thread."""
        try:
            if away and not any(self._has(objects, run) for run in away):
                return f"{objects.store.url}: none of its segments found: is it mounted?"
            if not self._is_probed:
                probe_store(objects.store, self._retries)
                self._is_probed = True
        except (StoreUnavailable, StoreRefused) as error:
            return str(error)
        return ""

    def _note_problem(self, problem: str) -> None:
        before, self._shard.store_problem = self._shard.store_problem, problem
        if problem:
            self._is_probed = False
        if problem and not before:
            logger.error("object store: exports paused: %s", problem)
        elif before and not problem:
            logger.info("object store: exports resumed")

    def _log_store_errors(self, job: BackgroundJob[None]) -> BackgroundJob[None]:
        try:
            yield from job
        except (StoreUnavailable, StoreRefused) as error:
            self._note_problem(str(error))

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

    def _to_move(self, topic: Topic) -> Iterator[list[SealedRun]]:
        """Yield local sealed segments beyond the strictest of the limits, and damaged local copies."""
        if self._objects is None or self._shard.store_problem:
            return
        settings = self._shard.settings
        oldest_ms = self._shard.clock.now_ms() - settings.hot_retain_ms
        count = size = 0
        for run in reversed(topic.runs):
            if not isinstance(run, SealedRun):
                continue
            count += 1
            size += run.entry.data_bytes
            is_over = count > settings.hot_retain_segments
            is_over = is_over or 0 < settings.hot_retain_bytes < size
            is_over = is_over or (settings.hot_retain_ms > 0 and run.entry.last_ts < oldest_ms)
            is_over = is_over or self._shard.segments.is_distrusted(run.name)
            has_copy = self._exports or run.entry.object_stem
            if is_over and has_copy and run.entry.tier == HOT and run.name not in self._damaged:
                yield [run]

    def _move(self, topic: Topic, runs: list[SealedRun]) -> BackgroundJob[bool]:
        """Export a segment unless the store has it, and drop its local copy."""
        (run,) = runs
        stem = run.entry.object_stem
        assert self._objects is not None
        store = self._objects.store
        if stem and not (yield partial(_is_whole, store, stem + DATA, run.entry.data_bytes)):
            # The export may be long ago. The local copy is the only one now.
            self._damaged.add(run.name)
            logger.error("upkeep: %s is missing in the object store, the local copy is kept", stem + DATA)
            return False
        if not stem:
            work = partial(export_segment, store, self._hot, run.name, run.entry, OWNER_EPOCH)
            exists, exported = yield from self._copy(
                topic, runs, partial(work, self._throttle, self._retries)
            )
            if exported is None:
                return False
            stem = exported.stem
            if not exists:
                self._shard.objects_to_delete[stem] = self._shard.clock.now_ms()
                return False
        run.entry = msgspec.structs.replace(run.entry, tier=COLD, object_stem=stem)
        topic.exported.append(run.name)
        return True

    # -- compaction and merging ------------------------------------------------------------------------------

    def _to_compact(self, topic: Topic) -> Iterator[list[SealedRun]]:
        for run in topic.runs:
            if not isinstance(run, SealedRun) or run.name in self._damaged or self._is_unreachable(run):
                continue
            if is_worth_rewriting(_entry_now(run)):
                yield [run]

    def _to_merge(self, topic: Topic) -> Iterator[list[SealedRun]]:
        # While the store is away the merged segment could not take the place of its sources there.
        if self._objects is not None and not self._shard.store_problem:
            yield from groups_to_merge(topic.runs, self._limits, self._damaged)

    def _rewrite(self, topic: Topic, runs: list[SealedRun]) -> BackgroundJob[bool]:
        """Rewrite segments as one, and replace them by it."""
        if not all(run.live_count for run in runs):
            return False  # The last live records were deleted since they were chosen.
        sources = [RewriteSource(run.name, _entry_now(run), _marks(topic, run)) for run in runs]
        name = rewritten_name([run.name for run in runs])
        work = partial(rewrite_segments, self._shard.segments, self._hot, sources, topic.complete_to)
        exist, entry = yield from self._copy(topic, runs, partial(work, self._throttle))
        if not exist or entry is None:
            yield partial(delete_copy, self._hot, name)
            return False
        # With the records deleted meanwhile.
        marks = bytearray().join(_marks(topic, run) for run in runs)
        new = SealedRun(self._shard.segments, name, entry, marks)
        new.saved_dead_count = entry.dead_count
        new.live_count = sum(run.live_count for run in runs)
        new.live_bytes = sum(run.live_bytes for run in runs)
        at = topic.runs.index(runs[0])
        topic.runs[at : at + len(runs)] = [new]
        topic.dropped += [DroppedSegment.of(run.name, run.entry) for run in runs]
        self.merged_count += len(runs) - 1
        return True

    # -- running ---------------------------------------------------------------------------------------------

    def _log_errors(self, runs: list[SealedRun], job: BackgroundJob[bool]) -> BackgroundJob[bool]:
        """Work on some segments; log their error, so that the other segments get their turn."""
        try:
            return (yield from job)
        except (StoreUnavailable, StoreRefused) as error:
            self._note_problem(str(error))
            return False
        except OSError as error:
            if _is_canceled(error):
                raise
            logger.warning("upkeep: segment %s skipped: %s", runs[0].name.key(""), error)
            return False
        except SegmentDamage as damage:
            run = next((one for one in runs if one.name == damage.name), runs[0])
            if self._shard.segments.distrust(run.name, run.entry):
                return False  # The next round reads the copy in the store.
            logger.error("upkeep: segment %s skipped: %s", run.name.key(""), damage)
            self._damaged.add(run.name)
            self._shard.damaged_segments.add(run.name)
            return False

    def _copy(
        self, topic: Topic, runs: list[SealedRun], work: Callable[[], T]
    ) -> BackgroundJob[tuple[bool, T | None]]:
        """Run a copy; return whether the segments still exist, and the result.

        Errors are ignored if one was removed meanwhile, as its files may not exist.
        """
        outcome: T | None = None
        try:
            outcome = yield from _run_on_thread(work)
            yield from self._wait_for_checkpoint()
        except (OSError, SegmentDamage) as error:
            if _is_canceled(error) or self._exist(topic, runs):
                raise
        return self._exist(topic, runs), outcome

    def _wait_for_checkpoint(self) -> BackgroundJob[None]:
        """Wait until no checkpoint is under way: the runs that it captured must not be replaced."""
        while self._checkpoints.is_running:
            yield CHECKPOINT_POLL_SECONDS

    def _is_unreachable(self, run: SealedRun) -> bool:
        """Return whether the segment's records are in a store that is not usable at present."""
        return run.entry.tier == COLD and (self._objects is None or self._shard.store_problem != "")

    def _is_scrubbed(self, run: SealedRun) -> bool:
        """Return whether a scrub reads the segment: remote stores check their objects, and bill each read."""
        is_remote = self._objects is not None and self._objects.is_remote
        return not self._is_unreachable(run) and not (is_remote and run.entry.tier == COLD)

    def _exist(self, topic: Topic, runs: Sequence[Run]) -> bool:
        """Return whether these adjacent segments may be replaced: a frozen topic does not change."""
        if topic.is_frozen or self._shard.topics_by_id.get(topic.topic_id) is not topic:
            return False
        at = next((at for at, one in enumerate(topic.runs) if one is runs[0]), -1)
        return at >= 0 and all(map(is_, topic.runs[at : at + len(runs)], runs))


def _is_exported(run: Run) -> TypeGuard[SealedRun]:
    return isinstance(run, SealedRun) and run.entry.object_stem != ""


def _is_whole(store: ObjectStore, key: str, size: int) -> bool:
    """Return whether the store has an object of this size, on the thread."""
    try:
        return store.info(key).size == size
    except FileNotFoundError:
        return False


def _is_cold(run: Run) -> TypeGuard[SealedRun]:
    return isinstance(run, SealedRun) and run.entry.tier == COLD


def _is_canceled(outcome: object) -> bool:
    return isinstance(outcome, OSError) and outcome.errno == errno.ECANCELED


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


def _marks(topic: Topic, run: SealedRun) -> bytearray:
    """Return one byte per record, 1 when it is deleted or evicted."""
    marks = bytearray(run.entry.count) if run.dead is None else bytearray(run.dead)
    below = max(0, min(topic.earliest_seq - run.first_seq, len(marks)))
    marks[:below] = b"\1" * below
    return marks


def _entry_now(run: SealedRun) -> SegmentEntry:
    return msgspec.structs.replace(
        run.entry, live_count=run.live_count, live_bytes=run.live_bytes, dead_count=run.saved_dead_count
    )
