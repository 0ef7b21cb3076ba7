"""The dead-letter mover: jobs that were delivered too often move to the dead-letter topic.

D1  A parked job is in the log, synced, before it is read here: it cannot be claimed any more, also after a
    restart.
D2  It is moved by a transfer (`transfer.py`): the destination knows the outcome of an unanswered move,
    however long ago it was. The destination is created like any topic.
D3  Only after the acknowledgement in the destination's class the job is deleted here, and counted.
D4  Failures are retried with growing delays: a destination that is full, missing or unavailable leaves the
    job parked. A queue without a dead-letter topic keeps the job parked until it gets one.
    When the queue gets another one, the mover first asks the former destination which records it has, and
    moves nothing before it knows.
D5  A job that can never be moved, because it is damaged or too large, does not delay others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

from shared.contract.errors import CORRUPT_SEGMENT, STATUS, Refusal
from shared.runtime.disk_thread import Loop
from topicsd.engine.queue.dead_letter import stamped_meta
from topicsd.engine.queue.job_records import JobRecords, decode_job_record, read_job_records
from topicsd.engine.queue.lease_queue import LeaseQueue
from topicsd.engine.queue.settle import end_jobs
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.service.queues.transfer import (
    MOVED_AT_ONCE,
    MoveReply,
    RunAtOwner,
    Transfer,
    TransferRecord,
    split_moves,
)

logger = logging.getLogger("topicsd.http")

RETRY_SECONDS: Final = 0.5
RETRY_SECONDS_MAX: Final = 30.0
OPERATION: Final = "dead_letter"


class DeadLetters:
    """The movers of all queues of a shard; `ask` runs an operation on a topic at its owner."""

    def __init__(self, shard: ShardState, loop: Loop, run_at_owner: RunAtOwner) -> None:
        self._shard = shard
        self._loop = loop
        self._run_at_owner = run_at_owner
        self._running: set[Topic] = set()
        shard.on_parked = self.wake
        for topic in shard.topics.values():
            if topic.queue is not None and topic.queue.parked:
                loop.call_later(RETRY_SECONDS, self.wake, topic)

    def wake(self, topic: Topic) -> None:
        """Start moving the parked jobs of a topic."""
        queue = topic.queue
        if topic not in self._running and queue is not None:
            self._running.add(topic)
            source = _ParkedJobs(self._shard, topic, queue)
            transfer = Transfer(source, OPERATION, self._run_at_owner, self._shard.clock.monotonic)
            _Run(self._shard, self._loop, source, transfer, partial(self._running.discard, topic)).next()


class _ParkedJobs:
    """The parked jobs of a queue, as the source of a transfer."""

    def __init__(self, shard: ShardState, topic: Topic, queue: LeaseQueue) -> None:
        self._shard = shard
        self.topic = topic
        self.queue = queue
        self.id = f"\0dead_letter:{topic.epoch}:{topic.topic_id:x}"

    @property
    def is_live(self) -> bool:
        return self._shard.topics.get(self.topic.name) is self.topic and self.topic.deferred_requests is None

    def first(self, count: int) -> list[int]:
        """Return the next jobs to move, at most `count`."""
        jobs = self.queue.jobs
        return [*islice((seq for seq in self.queue.parked if not jobs[seq].is_ending), count)]

    def has(self, seq: int) -> bool:
        has_record = self.is_live and self.topic.next_live(seq) == seq
        return has_record and seq in self.queue.parked and not self.queue.jobs[seq].is_ending

    def move_to_back(self, seq: int) -> None:
        """Move a job after all other parked jobs."""
        if seq in self.queue.parked:
            self.queue.parked.move_to_end(seq)

    def delete(self, seqs: list[int], reply: MoveReply) -> None:
        end_jobs(self._shard, self.topic, self.queue, seqs, lambda: reply(None), reply, is_dead_letter=True)


class _Run:
    """A run of the mover on one queue, until no job is left to move."""

    def __init__(
        self,
        shard: ShardState,
        loop: Loop,
        source: _ParkedJobs,
        transfer: Transfer,
        on_end: Callable[[], None],
    ) -> None:
        self._shard = shard
        self._loop = loop
        self._source = source
        self._transfer = transfer
        self._on_end = on_end
        self._wait_seconds = RETRY_SECONDS
        """Length of the next wait."""
        self._moved_back_count = 0
        """Jobs moved to the back since the last success or wait."""
        self._move_size = min(MOVED_AT_ONCE, shard.settings.max_batch_records)
        self._single_count = 0
        """Number of jobs to move one by one, because they were refused together."""
        self._logged_codes: set[str] = set()
        """Codes of the failures already logged."""

    def next(self) -> None:
        source = self._source
        has_destination = source.is_live and source.topic.config.dead_letter is not None
        seqs = source.first(1 if self._single_count else self._move_size) if has_destination else []
        former = next(iter(source.queue.former), None)
        if seqs and former is not None:
            self._transfer.reconcile(former, partial(self._on_reconciled, former))
        elif seqs:
            self._single_count = max(0, self._single_count - 1)
            read_job_records(self._shard, source.topic, seqs, partial(self._on_read, seqs))
        else:
            self._on_end()

    def _on_reconciled(self, former: str, refusal: Refusal | None) -> None:
        if refusal is None:
            self._source.queue.former.pop(former, None)
            self._loop.call_soon(self.next)
        else:
            self._log_once(
                refusal.code, f'former dead-letter topic "{former}" cannot be checked: {refusal.message}'
            )
            self._retry_later()

    def _on_read(self, seqs: list[int], texts: JobRecords) -> None:
        source = self._source
        destination = source.topic.config.dead_letter
        if destination is None or source.queue.former:
            # The records were read for the former destination.
            self._loop.call_soon(self.next)
            return
        records: list[TransferRecord] = []
        for seq in sorted(seqs):
            job, text = source.queue.jobs.get(seq), texts.by_seq.get(seq)
            if job is None or text is None:
                if seq in texts.damaged:
                    self._log_once(CORRUPT_SEGMENT, f"seq {seq}: {texts.damaged[seq]}")
                source.move_to_back(seq)
                self._moved_back_count += 1
                continue
            record = decode_job_record(text)
            meta = stamped_meta(bytes(record.meta), source.topic.name, seq, job.deliveries, job.reason)
            records.append(TransferRecord(seq, record, meta))
        if records:
            records = next(split_moves(records))
            self._transfer.move(destination, records, partial(self._on_moved, records))
        else:
            self._continue()

    def _on_moved(self, records: list[TransferRecord], refusal: Refusal | None) -> None:
        if refusal is None:
            self._wait_seconds, self._moved_back_count = RETRY_SECONDS, 0
            # In a separate turn: thousands of moves may follow.
            self._loop.call_soon(self.next)
            return
        if len(records) > 1 and STATUS[refusal.code] in (400, 422):
            # The destination may accept some of them.
            self._single_count = len(records)
            self._loop.call_soon(self.next)
            return
        self._log_once(refusal.code, refusal.message)
        if STATUS[refusal.code] == 400:
            self._source.move_to_back(records[0].seq)
            self._moved_back_count += 1
            self._continue()
        else:
            self._retry_later()

    def _log_once(self, code: str, message: str) -> None:
        if code not in self._logged_codes:
            self._logged_codes.add(code)
            topic = self._source.topic
            text = "dead letters: jobs not moved, will retry: %s  queue=%s dead_letter=%s"
            logger.warning(text, message, topic.name, topic.config.dead_letter)

    def _continue(self) -> None:
        """Continue, or wait when every parked job was moved to the back."""
        if self._moved_back_count < len(self._source.queue.parked):
            self._loop.call_soon(self.next)
        else:
            self._retry_later()

    def _retry_later(self) -> None:
        self._moved_back_count = self._single_count = 0
        seconds = self._wait_seconds
        self._wait_seconds = min(2 * seconds, RETRY_SECONDS_MAX)
        self._loop.call_later(seconds, self.next)
