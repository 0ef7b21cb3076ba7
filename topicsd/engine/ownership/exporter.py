"""The exporter: what a shard holds goes into the object store and into the catalog, in the background.

It works in rounds, one topic at a time (`topic_export.py`). A seal exports its topic by a job of its own.

X6  A store or a catalog that is away ends the round; the next one continues. Nothing else waits for it: hot
    data stays, and writes continue. Any other failure is of one topic, and does not hold up the others.
X7  Records older than the export interval are sealed by a checkpoint first, so that a lost machine
    loses no more than what was written in that time. Records in the log count too: the next checkpoint may be
    further away.
X8  What changes without records, such as cursors, acks and the configuration, is exported at the same
    interval, in a new state object. Only if the log has grown since are the topics looked at, and only a
    topic whose state has another digest makes a request. The digest is in the snapshots, so a restart exports
    nothing again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import takewhile
from typing import Final, NamedTuple, TypeVar

from shared.runtime.disk_thread import Loop
from shared.runtime.retries import Retries
from topicsd.catalog.catalog import ChangeRefused
from topicsd.engine.checkpoint.checkpointer import Checkpointer
from topicsd.engine.jobs import Background, BackgroundJob, operation
from topicsd.engine.ownership.extents import unexported, unexported_at_end
from topicsd.engine.ownership.owner_calls import AWAY, NotOwned, OwnerCalls
from topicsd.engine.ownership.release import Release
from topicsd.engine.ownership.rounds import CatalogRounds
from topicsd.engine.ownership.topic_export import TopicExports
from topicsd.engine.records.tail_run import TailRun
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.upkeep.upkeep import RateLimit
from topicsd.segment.store import SegmentStore
from topicsd.store.object_store import ObjectStore

logger = logging.getLogger("topicsd.engine")

ROUND_SECONDS: Final = 5.0
PAUSE_SECONDS_MAX: Final = 60.0
BUSY_SECONDS: Final = 0.05
"""How long a seal waits before it looks again whether a round has finished with its topic."""

T = TypeVar("T")


class ExportState(NamedTuple):
    """The state of the exports, for metrics."""

    waiting_count: int
    """Sealed segments that are not exported."""
    waiting_bytes: int
    oldest_ms: int
    """The time of the oldest record that was never exported; 0 when there is none."""
    failure_count: int
    segments: int
    """Segments exported since the start, and their bytes."""
    bytes: int
    failed_ms: int
    """The time of the last failure; 0 when there was none."""
    problem: str
    """Why nothing is exported at present; empty when nothing is wrong."""


class Exporter:
    """The exporter of one shard."""

    def __init__(
        self,
        shard: ShardState,
        loop: Loop,
        rounds: CatalogRounds,
        checkpoints: Checkpointer,
        hot: SegmentStore,
        store: ObjectStore,
    ) -> None:
        self._shard = shard
        self._loop = loop
        self._rounds = rounds
        self._checkpoints = checkpoints
        self._background = Background(loop, shard.threads.export, shard.log)
        self._throttle = RateLimit(shard.settings.background_bytes_per_second)
        # 0.0: the next round repeats what failed, and the thread is free for other topics meanwhile.
        retries = Retries(shard.clock.monotonic, self._throttle.wait, 0.0)
        self.calls = OwnerCalls(shard, rounds, store, retries)
        self.topic_export = TopicExports(shard, self.calls, checkpoints, hot, store, self._throttle, retries)
        self._release = Release(shard, rounds.owns_id, self.calls, self.topic_export)
        self._pause = ROUND_SECONDS
        self._busy: set[Topic] = set()
        self._failure_count = self._failed_ms = 0
        self._problem = ""
        self._waiting = (0, 0, 0)
        self._states_due_ms = 0
        self._states_seen = -1
        """The end of the log when all states were looked at."""

    def start(self) -> None:
        self._states_due_ms = self._shard.clock.now_ms() + self._shard.settings.export_interval_ms
        self._loop.call_later(ROUND_SECONDS, self._start_round)

    def stop(self) -> None:
        self._throttle.stop()
        self._background.stop()

    @property
    def state(self) -> ExportState:
        done = (self.topic_export.segment_count, self.topic_export.segment_bytes)
        return ExportState(*self._waiting, self._failure_count, *done, self._failed_ms, self._problem)

    def run(self, job: BackgroundJob[T], on_end: Callable[[T | Exception], object]) -> None:
        """Run a job on the thread of the exporter."""
        self._background.start(job, on_end)

    def alone(self, topic: Topic, job: BackgroundJob[T]) -> BackgroundJob[T]:
        """Run a job while no other one exports this topic."""
        while topic in self._busy:
            yield BUSY_SECONDS
        self._busy.add(topic)
        try:
            return (yield from job)
        finally:
            self._busy.discard(topic)

    # -- rounds ----------------------------------------------------------------------------------------------

    def _start_round(self) -> None:
        self._background.start(self._round(), self._on_round_end)

    def _on_round_end(self, outcome: object) -> None:
        if isinstance(outcome, Exception):
            self._note_failure()
        if isinstance(outcome, AWAY):
            if not self._problem:
                logger.warning("export: paused, hot data stays: %s", outcome)
            self._problem = str(outcome)
            self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
        elif isinstance(outcome, Exception):
            logger.error("export: round failed, retrying: %s", outcome, exc_info=outcome)
        else:
            if self._problem:
                logger.info("export: continued")
            self._problem, self._pause = "", ROUND_SECONDS
        self._loop.call_later(self._pause, self._start_round)

    def _note_failure(self) -> None:
        self._failure_count += 1
        self._failed_ms = self._shard.clock.now_ms()

    def _round(self) -> BackgroundJob[None]:
        self.topic_export.forget_gone()
        chosen: list[Topic] = []
        sealing: dict[Topic, None] = {}
        yield from self._choose(chosen, sealing)
        if not self._rounds.has_looked_up:
            return
        if sealing:
            yield from self._seal_active(sealing)
        for topic in [*chosen, *sealing]:
            yield from self._turn(topic, self.topic_export.export)
        for topic, stems in self._release.waiting().items():
            yield from self._turn(topic, lambda topic, stems=stems: self._release.release(topic, stems))  # type: ignore[misc]
        yield from self._refresh_states()

    def _turn(self, topic: Topic, job: Callable[[Topic], BackgroundJob[None]]) -> BackgroundJob[None]:
        """Do the work of one topic, unless another job does or the topic is gone."""
        if not self._may_export(topic):
            return
        try:
            yield from self.alone(topic, job(topic))
        except NotOwned:
            pass
        except ChangeRefused as error:
            self._note_failure()
            logger.error('export: topic "%s": change refused, retrying: %s', topic.name, error)

    def _may_export(self, topic: Topic) -> bool:
        is_owned = topic.ownership is not None and topic.ownership.owner_epoch > 0
        is_in_use = self._shard.is_live(topic) and topic.visible and not topic.is_frozen
        return is_in_use and is_owned and topic not in self._busy

    def _choose(self, chosen: list[Topic], sealing: dict[Topic, None]) -> BackgroundJob[None]:
        """Find the topics to export, and those whose active segment is old."""
        waiting = [0, 0, 0]
        for topics in self._shard.topics_by_turns():
            for topic in topics:
                if self._has_old_records(topic):
                    sealing[topic] = None
                runs = list(unexported(topic))
                if runs:
                    chosen.append(topic)
                    waiting[0] += len(runs)
                    waiting[1] += sum(run.entry.data_bytes for run in runs)
                    new = next(unexported_at_end(topic), None)
                    if new is not None:
                        waiting[2] = min(waiting[2] or new.entry.first_ts, new.entry.first_ts)
                elif self.topic_export.has_uploads(topic):
                    chosen.append(topic)
            yield None
        self._waiting = (waiting[0], waiting[1], waiting[2])

    def _has_old_records(self, topic: Topic) -> bool:
        """Return whether the first record that is in no sealed segment is older than the export interval.

        Those in the log count too: the next checkpoint may be further away than the interval.
        """
        interval_ms = self._shard.settings.export_interval_ms
        if not interval_ms or topic.is_ephemeral:
            return False
        oldest_ms = self._shard.clock.now_ms() - interval_ms
        unsealed = takewhile(lambda run: isinstance(run, TailRun), reversed(topic.runs))
        return any(run.times_ms and run.times_ms[0] <= oldest_ms for run in unsealed)

    def _seal_active(self, topics: dict[Topic, None]) -> BackgroundJob[None]:
        shard = self._shard
        shard.topics_to_seal |= topics.keys()
        try:
            failure: Exception | None = yield from operation(self._checkpoints.start)
        finally:
            shard.topics_to_seal -= topics.keys()
        if failure is not None:
            logger.warning("export: active segments not sealed, retrying: %s", failure)

    def _refresh_states(self) -> BackgroundJob[None]:
        """Export the states that have changed without new records (X8)."""
        shard, interval_ms = self._shard, self._shard.settings.export_interval_ms
        end = shard.log.batch.next_ordinal
        if not interval_ms or shard.clock.now_ms() < self._states_due_ms or end == self._states_seen:
            return
        has_changed = False
        for topics in shard.topics_by_turns():
            for topic in topics:
                if self._may_export(topic) and self.topic_export.has_new_state(topic):
                    yield from self._turn(topic, self.topic_export.refresh_state)
                    has_changed = True
                yield None
        if has_changed:
            # Records the digests and the former state objects, which are deleted after it.
            self._checkpoints.start()
        self._states_seen = end
        self._states_due_ms = shard.clock.now_ms() + interval_ms
