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
from topicsd.engine.queue.job_records import Texts, decode_text, read_texts
from topicsd.engine.queue.lease_queue import LeaseQueue
from topicsd.engine.queue.settle import end_jobs
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.service.queues.transfer import MOVED_AT_ONCE, Ask, Letter, Moving, Told, at_once

logger = logging.getLogger("topicsd.http")

AGAIN_SECONDS: Final = 0.5
AGAIN_SECONDS_MAX: Final = 30.0
OPERATION: Final = "dead_letter"


class DeadLetters:
    """The movers of all queues of a shard; `ask` runs an operation on a topic at its owner."""

    def __init__(self, shard: ShardState, loop: Loop, ask: Ask) -> None:
        self._shard = shard
        self._loop = loop
        self._ask = ask
        self._moving: set[Topic] = set()
        shard.on_parked = self.wake
        for topic in shard.topics.values():
            if topic.queue is not None and topic.queue.parked:
                loop.call_later(AGAIN_SECONDS, self.wake, topic)

    def wake(self, topic: Topic) -> None:
        """Start moving the parked jobs of a topic."""
        queue = topic.queue
        if topic not in self._moving and queue is not None:
            self._moving.add(topic)
            source = _Parked(self._shard, topic, queue)
            moving = Moving(source, OPERATION, self._ask, self._shard.clock.monotonic)
            _Run(self._shard, self._loop, source, moving, partial(self._moving.discard, topic)).next()


class _Parked:
    """The parked jobs of a queue, as the source of a transfer."""

    def __init__(self, shard: ShardState, topic: Topic, queue: LeaseQueue) -> None:
        self._shard = shard
        self.topic = topic
        self.queue = queue
        self.id = f"\0dead_letter:{topic.epoch}:{topic.topic_id:x}"

    @property
    def is_here(self) -> bool:
        return self._shard.topics.get(self.topic.name) is self.topic and self.topic.leaving is None

    def first(self, count: int) -> list[int]:
        """Return the next jobs to move, at most `count`."""
        jobs = self.queue.jobs
        return [*islice((seq for seq in self.queue.parked if not jobs[seq].is_leaving), count)]

    def has(self, seq: int) -> bool:
        is_alive = self.is_here and self.topic.next_live(seq) == seq
        return is_alive and seq in self.queue.parked and not self.queue.jobs[seq].is_leaving

    def put_off(self, seq: int) -> None:
        """Move a job after all other parked jobs."""
        if seq in self.queue.parked:
            self.queue.parked.move_to_end(seq)

    def end(self, seqs: list[int], told: Told) -> None:
        end_jobs(self._shard, self.topic, self.queue, seqs, lambda: told(None), told, is_dead_letter=True)


class _Run:
    """A run of the mover on one queue, until no job is left to move."""

    def __init__(
        self,
        shard: ShardState,
        loop: Loop,
        source: _Parked,
        moving: Moving,
        ended: Callable[[], None],
    ) -> None:
        self._shard = shard
        self._loop = loop
        self._source = source
        self._moving = moving
        self._ended = ended
        self._wait_seconds = AGAIN_SECONDS
        """Length of the next wait."""
        self._put_off_count = 0
        """Jobs moved to the back since the last success or wait."""
        self._count_at_once = min(MOVED_AT_ONCE, shard.settings.max_batch_records)
        self._single_count = 0
        """Number of jobs to move one by one, because they were refused together."""
        self._told_of: set[str] = set()
        """Codes of the failures already logged."""

    def next(self) -> None:
        source = self._source
        has_place = source.is_here and source.topic.config.dead_letter is not None
        seqs = source.first(1 if self._single_count else self._count_at_once) if has_place else []
        former = next(iter(source.queue.former), None)
        if seqs and former is not None:
            self._moving.look(former, partial(self._looked, former))
        elif seqs:
            self._single_count = max(0, self._single_count - 1)
            read_texts(self._shard, source.topic, seqs, partial(self._read, seqs))
        else:
            self._ended()

    def _looked(self, former: str, refusal: Refusal | None) -> None:
        if refusal is None:
            self._source.queue.former.pop(former, None)
            self._loop.call_soon(self.next)
        else:
            self._say(refusal.code, f'what may be in "{former}" is not known: {refusal.message}')
            self._later()

    def _read(self, seqs: list[int], texts: Texts) -> None:
        source = self._source
        destination = source.topic.config.dead_letter
        if destination is None or source.queue.former:
            # The records were read for the former destination.
            self._loop.call_soon(self.next)
            return
        letters: list[Letter] = []
        for seq in sorted(seqs):
            job, text = source.queue.jobs.get(seq), texts.by_seq.get(seq)
            if job is None or text is None:
                if seq in texts.damaged:
                    self._say(CORRUPT_SEGMENT, f"seq {seq}: {texts.damaged[seq]}")
                source.put_off(seq)
                self._put_off_count += 1
                continue
            record = decode_text(text)
            meta = stamped_meta(bytes(record.meta), source.topic.name, seq, job.deliveries, job.reason)
            letters.append(Letter(seq, record, meta))
        if letters:
            letters = next(at_once(letters))
            self._moving.move(destination, letters, partial(self._told, letters))
        else:
            self._next_or_later()

    def _told(self, letters: list[Letter], refusal: Refusal | None) -> None:
        if refusal is None:
            self._wait_seconds, self._put_off_count = AGAIN_SECONDS, 0
            # In a turn of its own: thousands may follow each other.
            self._loop.call_soon(self.next)
            return
        if len(letters) > 1 and STATUS[refusal.code] in (400, 422):
            # The destination may accept some of them.
            self._single_count = len(letters)
            self._loop.call_soon(self.next)
            return
        self._say(refusal.code, refusal.message)
        if STATUS[refusal.code] == 400:
            self._source.put_off(letters[0].seq)
            self._put_off_count += 1
            self._next_or_later()
        else:
            self._later()

    def _say(self, code: str, message: str) -> None:
        if code not in self._told_of:
            self._told_of.add(code)
            topic = self._source.topic
            told = 'jobs of queue "%s" wait for their dead-letter topic "%s": %s'
            logger.warning(told, topic.name, topic.config.dead_letter, message)

    def _next_or_later(self) -> None:
        """Continue, or wait when every parked job was moved to the back."""
        if self._put_off_count < len(self._source.queue.parked):
            self._loop.call_soon(self.next)
        else:
            self._later()

    def _later(self) -> None:
        self._put_off_count = self._single_count = 0
        seconds = self._wait_seconds
        self._wait_seconds = min(2 * seconds, AGAIN_SECONDS_MAX)
        self._loop.call_later(seconds, self.next)
