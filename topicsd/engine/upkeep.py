"""What keeps segments well while nobody asks for them: age, dropping what is dead, moving to the cold
directory, rewriting what is mostly dead, and reading everything once in a while to find damage before a
reader does.

One round after the other, one segment at a time, each at a bounded rate on a thread of its own. A segment
that was copied takes its new place in the topic in one step of the loop, when no checkpoint is under way;
the old files go when a snapshot names the new ones. A crash at any moment leaves what the last snapshot
says, and copies that nobody asks for.

Must not know: how segments are copied (`segment/`), how a snapshot is made.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from topicsd.engine.background import Background, Job
from topicsd.engine.retention import drop_run
from topicsd.engine.sealed_run import SealedRun
from topicsd.engine.shard_state import ShardState
from topicsd.engine.tail_run import TailRun
from topicsd.engine.topic import Topic
from topicsd.engine.trim_report import log_expired
from topicsd.segment.entry import COLD, HOT, SegmentDamage, SegmentEntry, SegmentName
from topicsd.segment.reader import SegmentReader
from topicsd.segment.relocate import Pace, copy_segment, delete_copy
from topicsd.segment.rewrite import is_worth_rewriting, rewrite_segment
from topicsd.segment.scrub import scrub
from topicsd.segment.store import SegmentStore
from topicsd.wal.sync_thread import Loop

logger = logging.getLogger("topicsd.engine")

T = TypeVar("T")

ROUND_SECONDS = 60.0
SCRUB_SECONDS = 86_400.0
# A process that is started anew each day looks at everything too.
FIRST_SCRUB_SECONDS = 3600.0
CHECKPOINT_POLL_SECONDS = 0.05
TOPICS_A_TURN = 500
RUNS_A_TURN = 250


class Checkpoints(Protocol):
    """As `checkpointer.py` has them."""

    @property
    def is_running(self) -> bool: ...

    def start(self) -> None: ...

    def purge(self) -> Job[None]: ...


class Pacer:
    """So many bytes a second, until it is stopped."""

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._stopped = threading.Event()

    def __call__(self, size: int) -> None:
        if self._stopped.wait(size / self._bytes_per_second):
            raise OSError(errno.ECANCELED, "the shard closes")

    def stop(self) -> None:
        self._stopped.set()


class Upkeep:
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
        self._pace = Pacer(shard.settings.background_bytes_per_second)
        self._is_awake = False
        self._scrub_at = shard.clock.monotonic() + FIRST_SCRUB_SECONDS
        self._to_scrub: list[tuple[Topic, SealedRun]] = []
        """What is still to be read, the next one last."""
        self._given_up: set[SegmentName] = set()
        """What is damaged stays where it is, and is not tried again before a restart."""

    def wake(self) -> None:
        """There are segments; from here on a round follows another."""
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_later(ROUND_SECONDS, self.start_round)

    def start_round(self) -> None:
        self._background.start(self._round(), self._ended)

    def stop(self) -> None:
        self._pace.stop()

    def _ended(self, outcome: Exception | None) -> None:
        if isinstance(outcome, OSError) and outcome.errno == errno.ECANCELED:
            return
        if isinstance(outcome, Exception):
            logger.error("the upkeep of segments failed and is tried again: %s", outcome)
        # Who has not read everything did so for as long as there is between two rounds.
        self._loop.call_later(0.0 if self._to_scrub else ROUND_SECONDS, self.start_round)

    def _round(self) -> Job[None]:
        yield from self._expire()
        # Its time comes also where nothing is written.
        yield from self._checkpoints.purge()
        has_changed = False
        for topics in self._turns():
            for topic in topics:
                has_changed |= _drop_dead(topic) or self._is_to_be_sealed(topic)
            yield None
        for choose, work in ((self._to_move, self._move), (self._half_dead, self._rewrite)):
            chosen: list[tuple[Topic, SealedRun]] = []
            for topics in self._turns():
                chosen += [(topic, run) for topic in topics for run in choose(topic)]
                yield None
            for topic, run in chosen:
                # The work on those in front of it takes its time.
                if self._is_there(topic, run):
                    has_changed |= yield from self._careful(run, work(topic, run))
        if has_changed:
            self._checkpoints.start()
        yield from self._scrub_some()

    def _turns(self) -> Iterator[list[Topic]]:
        """All topics, so many as may be looked at in one turn of the loop."""
        topics: list[Topic] = []
        run_count = 0
        for topic in list(self._shard.topics.values()):
            topics.append(topic)
            run_count += len(topic.runs)
            if run_count >= RUNS_A_TURN:
                yield topics
                topics, run_count = [], 0
        yield topics

    def _is_to_be_sealed(self, topic: Topic) -> bool:
        """Its active segment is old enough; nobody else looks for that where nothing is written."""
        for run in reversed(topic.runs):
            if isinstance(run, TailRun) and run.source is not None:
                age_ms = self._shard.clock.now_ms() - run.source.entry.first_ts
                return age_ms >= self._shard.settings.segment_max_age_ms
        return False

    def _expire(self) -> Job[None]:
        """Age takes its part also of topics that nobody touches."""
        for number, topic in enumerate(list(self._shard.topics.values())):
            if topic.config.ttl_ms and topic.visible and topic.leaving is None:
                log_expired(self._shard, topic, self._shard.clock.now_ms())
            if number % TOPICS_A_TURN == 0:
                yield None

    # -- to the cold directory -------------------------------------------------------------------------------

    def _to_move(self, topic: Topic) -> Iterator[SealedRun]:
        """Sealed segments beyond the newest so many, or so many bytes; the stricter counts."""
        if self._cold is None:
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
            if is_over and run.entry.tier == HOT and run.name not in self._given_up:
                yield run

    def _move(self, topic: Topic, run: SealedRun) -> Job[bool]:
        assert self._cold is not None
        entry, saved = run.entry, run.saved_dead_count
        # The marks that are on the disk go along, and those only are counted by the copy.
        copied = msgspec.structs.replace(entry, dead_count=saved)
        work = partial(copy_segment, self._hot, self._cold, run.name, copied, self._pace)
        is_there, _ = yield from self._copied(topic, run, work)
        if not is_there or run.saved_dead_count != saved:
            yield partial(delete_copy, self._cold, run.name)
            return False
        run.entry = msgspec.structs.replace(run.entry, tier=COLD)
        topic.dropped.append((run.name, HOT))
        return True

    # -- rewriting -------------------------------------------------------------------------------------------

    def _half_dead(self, topic: Topic) -> Iterator[SealedRun]:
        for run in topic.runs:
            if not isinstance(run, SealedRun) or run.name in self._given_up:
                continue
            if is_worth_rewriting(_entry_now(run)):
                yield run

    def _rewrite(self, topic: Topic, run: SealedRun) -> Job[bool]:
        name, entry = run.name, _entry_now(run)
        marks = bytearray(entry.count) if run.dead is None else bytearray(run.dead)
        below = max(0, topic.earliest_seq - run.first_seq)
        marks[:below] = b"\1" * below
        store = self._cold if entry.tier == COLD else self._hot
        assert store is not None
        work = partial(rewrite_segment, self._shard.segments, store, name, entry, bytes(marks))
        is_there, new_entry = yield from self._copied(
            topic, run, partial(work, topic.complete_to, self._pace)
        )
        if not is_there or new_entry is None:
            yield partial(delete_copy, store, name._replace(generation=name.generation + 1))
            return False
        new_name = name._replace(generation=new_entry.generation)
        if run.dead is not None:
            # What was deleted meanwhile, in one step for all records.
            both = int.from_bytes(marks, "little") | int.from_bytes(run.dead, "little")
            marks = bytearray(both.to_bytes(entry.count, "little"))
        new = SealedRun(self._shard.segments, new_name, new_entry, marks)
        new.saved_dead_count = new_entry.dead_count
        new.live_count, new.live_bytes = run.live_count, run.live_bytes
        topic.runs[topic.runs.index(run)] = new
        topic.dropped.append((name, entry.tier))
        return True

    # -- reading everything ----------------------------------------------------------------------------------

    def _scrub_some(self) -> Job[None]:
        """Not all at once: of a large store that takes hours, in which the rest of a round has its turn."""
        clock = self._shard.clock
        if clock.monotonic() >= self._scrub_at:
            self._scrub_at = clock.monotonic() + SCRUB_SECONDS
            self._to_scrub.clear()
            for topics in self._turns():
                for topic in topics:
                    self._to_scrub += [(topic, run) for run in topic.runs if isinstance(run, SealedRun)]
                yield None
            self._to_scrub.reverse()
        until = clock.monotonic() + ROUND_SECONDS
        while self._to_scrub and clock.monotonic() < until:
            topic, run = self._to_scrub.pop()
            if self._is_there(topic, run):
                yield from self._scrub(topic, run)

    def _scrub(self, topic: Topic, run: SealedRun) -> Job[None]:
        entry = msgspec.structs.replace(run.entry, dead_count=run.saved_dead_count)
        try:
            damages = yield partial(_scrub, self._shard.segments, run.name, entry, self._pace)
        except OSError as error:
            if error.errno == errno.ECANCELED:
                raise
            logger.warning("%s could not be looked at: %s", run.name.key(""), error)
            return
        for damage in damages if self._is_there(topic, run) else ():
            logger.error('topic "%s" is damaged: %s', topic.name, damage)
            self._shard.damaged_segments.add(run.name)

    # -- how -------------------------------------------------------------------------------------------------

    def _careful(self, run: SealedRun, job: Job[bool]) -> Job[bool]:
        """One segment that cannot be read or written does not keep the others from their turn."""
        try:
            return (yield from job)
        except OSError as error:
            if error.errno == errno.ECANCELED:
                raise
            logger.warning("%s stays as it is: %s", run.name.key(""), error)
            return False
        except SegmentDamage as damage:
            logger.error("%s stays as it is: %s", run.name.key(""), damage)
            self._given_up.add(run.name)
            self._shard.damaged_segments.add(run.name)
            return False

    def _copied(self, topic: Topic, run: SealedRun, work: Callable[[], T]) -> Job[tuple[bool, T | None]]:
        """Whether the segment is still there when its copy is done, and what came of that. Of one that left
        meanwhile, and whose files may be gone, nobody wants to know how that ended."""
        outcome: T | None = None
        try:
            outcome = yield from _done(work)
            yield from self._no_checkpoint()
        except (OSError, SegmentDamage) as error:
            is_over = isinstance(error, OSError) and error.errno == errno.ECANCELED
            if is_over or self._is_there(topic, run):
                raise
        return self._is_there(topic, run), outcome

    def _no_checkpoint(self) -> Job[None]:
        """What a checkpoint has captured must not be replaced under it."""
        while self._checkpoints.is_running:
            yield CHECKPOINT_POLL_SECONDS

    def _is_there(self, topic: Topic, run: SealedRun) -> bool:
        return self._shard.topics_by_id.get(topic.topic_id) is topic and any(one is run for one in topic.runs)


def _drop_dead(topic: Topic) -> bool:
    """Segments in which nothing is alive go, in the middle of the topic too; whether there were any."""
    dead = [run for run in topic.runs if isinstance(run, SealedRun) and not run.live_count]
    for run in dead:
        drop_run(topic, run)
        topic.runs.remove(run)
    return bool(dead)


def _done(work: Callable[[], T]) -> Job[T]:
    """Work for the thread that may find damage."""
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


def _scrub(reader: SegmentReader, name: SegmentName, entry: SegmentEntry, pace: Pace) -> list[SegmentDamage]:
    work: Callable[[], int] = partial(next, scrub(reader, name, entry))
    while True:
        try:
            pace(work())
        except StopIteration as end:
            return end.value or []
