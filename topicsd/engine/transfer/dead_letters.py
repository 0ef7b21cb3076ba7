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
from functools import partial
from itertools import islice
from typing import Final

from shared.contract.errors import CORRUPT_SEGMENT, STATUS, STORE_UNAVAILABLE, Refusal
from topicsd.engine.jobs import BackgroundJob, operation
from topicsd.engine.queue.job_records import JobRecords, decode_job_record, read_job_records
from topicsd.engine.queue.lease_queue import LeaseQueue
from topicsd.engine.queue.settle import end_jobs
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.transfer.dead_letter_stamp import stamped_meta
from topicsd.engine.transfer.move import MovedRecord, MoveReply, SendMove, moved_record
from topicsd.engine.transfer.transfer import MOVED_AT_ONCE, Transfer, split_moves, wait_while_frozen

logger = logging.getLogger("topicsd.engine")

RETRY_SECONDS: Final = 0.5
RETRY_SECONDS_MAX: Final = 30.0


class DeadLetters:
    """The movers of all queues of a shard."""

    def __init__(self, shard: ShardState, send: SendMove) -> None:
        self._shard = shard
        self._send = send
        self._running: set[Topic] = set()
        for topic in shard.topics.values():
            if topic.queue is not None and topic.queue.parked:
                # Other shards may still be starting.
                self._start_mover(topic, topic.queue, RETRY_SECONDS)
        shard.jobs.start(self._start_movers(), _log_error)

    def _start_movers(self) -> BackgroundJob[None]:
        """Start a mover whenever jobs were parked. Never ends."""
        while True:
            topic = yield from operation(self._shard.parked.take)
            if topic.queue is not None and topic not in self._running:
                self._start_mover(topic, topic.queue)

    def _start_mover(self, topic: Topic, queue: LeaseQueue, delay_seconds: float | None = None) -> None:
        def on_end(outcome: Exception | None) -> None:
            self._running.discard(topic)
            _log_error(outcome)

        self._running.add(topic)
        self._shard.jobs.start(_Mover(self._shard, topic, queue, self._send).run(delay_seconds), on_end)


def _log_error(outcome: Exception | None) -> None:
    if outcome is not None:
        logger.error("dead letters: job failed: unexpected error", exc_info=outcome)


class _ParkedJobs:
    """The parked jobs of a queue, as the source of a transfer."""

    def __init__(self, shard: ShardState, topic: Topic, queue: LeaseQueue) -> None:
        self._shard = shard
        self._topic = topic
        self._queue = queue
        self.id = f"\0dead_letter:{topic.epoch}:{topic.topic_id:x}"

    def has(self, seq: int) -> bool:
        has_record = self._shard.is_live(self._topic) and self._topic.next_live(seq) == seq
        return has_record and seq in self._queue.parked and not self._queue.known_jobs[seq].is_ending

    def delete(self, seqs: list[int]) -> BackgroundJob[Refusal | None]:
        yield from wait_while_frozen(self._topic)
        seqs = [seq for seq in seqs if self.has(seq)]

        def start(reply: MoveReply) -> None:
            then = partial(reply, None)
            end_jobs(self._shard, self._topic, self._queue, seqs, then, reply, is_dead_letter=True)

        return (yield from operation(start))


class _Mover:
    """The mover of one queue."""

    def __init__(self, shard: ShardState, topic: Topic, queue: LeaseQueue, send: SendMove) -> None:
        self._shard = shard
        self._topic = topic
        self._queue = queue
        self._transfer = Transfer(_ParkedJobs(shard, topic, queue), send, is_redrive=False)
        self._wait_seconds = RETRY_SECONDS
        """Length of the next wait."""
        self._moved_back_count = 0
        """Jobs moved to the back since the last success or wait."""
        self._move_size = min(MOVED_AT_ONCE, shard.settings.max_batch_records)
        self._single_count = 0
        """Number of jobs to move one by one, because they were refused together."""
        self._logged_codes: set[str] = set()
        """Codes of the failures already logged."""

    def run(self, delay_seconds: float | None) -> BackgroundJob[None]:
        """Move parked jobs until none is left to move."""
        yield delay_seconds
        while seqs := self._next_seqs():
            former = next(iter(self._queue.former_dead_letters), None)
            if former is not None:
                pause = yield from self._check_former(former)
            else:
                pause = yield from self._move(seqs)
            # At least until the next turn: thousands of moves may follow.
            yield pause

    def _next_seqs(self) -> list[int]:
        if not self._shard.is_live(self._topic) or self._topic.config.dead_letter is None:
            return []
        count, jobs = 1 if self._single_count else self._move_size, self._queue.known_jobs
        return [*islice((seq for seq in self._queue.parked if not jobs[seq].is_ending), count)]

    def _check_former(self, former: str) -> BackgroundJob[float | None]:
        """Find out which jobs the former destination has; return the pause after it (`_pause_after`)."""
        refusal = yield from self._transfer.reconcile(former)
        if refusal is None:
            self._queue.former_dead_letters.pop(former, None)
            return None
        self._log_once(
            refusal.code, f'former dead-letter topic "{former}" cannot be checked: {refusal.message}'
        )
        return self._retry_seconds()

    def _move(self, seqs: list[int]) -> BackgroundJob[float | None]:
        """Move as many of these jobs as fit into one move; return the pause after it."""
        self._single_count = max(0, self._single_count - 1)
        texts = yield from operation(partial(read_job_records, self._shard, self._topic, seqs))
        destination = self._topic.config.dead_letter
        if destination is None or self._queue.former_dead_letters:
            # The records were read for the former destination.
            return None
        records = next(split_moves(self._stamped(seqs, texts)), [])
        refusal = yield from self._transfer.move(destination, records)
        return self._pause_after(records, refusal)

    def _stamped(self, seqs: list[int], texts: JobRecords) -> list[MovedRecord]:
        """Return the records for the dead-letter topic; move jobs without a readable record to the back."""
        records: list[MovedRecord] = []
        for seq in sorted(seqs):
            job, text = self._queue.known_jobs.get(seq), texts.by_seq.get(seq)
            if job is None or text is None:
                if seq in texts.damaged:
                    code = STORE_UNAVAILABLE if seq in texts.away else CORRUPT_SEGMENT
                    self._log_once(code, f"seq {seq}: {texts.damaged[seq]}")
                self._move_to_back(seq)
                continue
            record = decode_job_record(text)
            meta = stamped_meta(bytes(record.meta), self._topic.name, seq, job.deliveries, job.reason)
            records.append(moved_record(record, meta))
        return records

    def _pause_after(self, records: list[MovedRecord], refusal: Refusal | None) -> float | None:
        """Return the seconds to wait after a move, or None to continue in the next turn."""
        if records and refusal is None:
            self._wait_seconds, self._moved_back_count = RETRY_SECONDS, 0
            return None
        if refusal is not None:
            status = STATUS[refusal.code]
            if len(records) > 1 and status in (400, 422):
                # The destination may accept some of them.
                self._single_count = len(records)
                return None
            self._log_once(refusal.code, refusal.message)
            if status != 400:
                return self._retry_seconds()
            self._move_to_back(records[0].seq)
        is_any_left = self._moved_back_count < len(self._queue.parked)
        return None if is_any_left else self._retry_seconds()

    def _move_to_back(self, seq: int) -> None:
        """Move a job after all other parked jobs."""
        self._moved_back_count += 1
        if seq in self._queue.parked:
            self._queue.parked.move_to_end(seq)

    def _retry_seconds(self) -> float:
        """Return the seconds to wait after a failure; the next wait is twice as long."""
        self._moved_back_count = self._single_count = 0
        seconds = self._wait_seconds
        self._wait_seconds = min(2 * seconds, RETRY_SECONDS_MAX)
        return seconds

    def _log_once(self, code: str, message: str) -> None:
        if code not in self._logged_codes:
            self._logged_codes.add(code)
            text = "dead letters: jobs not moved, will retry: %s  queue=%s dead_letter=%s"
            logger.warning(text, message, self._topic.name, self._topic.config.dead_letter)
