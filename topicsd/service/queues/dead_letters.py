"""The mover: jobs that were delivered too often go from their queue to its dead-letter topic.

D1  A parked job is in the log, synced, before it is read here: nobody gets it any more, also after a restart.
D2  It is moved (`moving.py`): what became of one that was not answered the destination knows, however long
    ago that was. That is created like any topic.
D3  Only when that is acked in its class the job is deleted here, and counted.
D4  What does not work is tried again, later and later: a destination that is full, missing or away keeps the
    job parked. One that is not named keeps it too, until the queue is given one.
    Where another one is named meanwhile, what may be in the one before is looked for there first, and nothing
    goes on before that is known.
D5  A job that cannot be moved whatever else can, as it is damaged or too large, holds up no other one.
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
    """`ask` has an operation on a topic done by its owner."""

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
        """It has parked jobs."""
        queue = topic.queue
        if topic not in self._moving and queue is not None:
            self._moving.add(topic)
            source = _Parked(self._shard, topic, queue)
            moving = Moving(source, OPERATION, self._ask, self._shard.clock.monotonic)
            _Run(self._shard, self._loop, source, moving, partial(self._moving.discard, topic)).next()


class _Parked:
    """The jobs of a queue that are to leave it."""

    def __init__(self, shard: ShardState, topic: Topic, queue: LeaseQueue) -> None:
        self._shard = shard
        self.topic = topic
        self.queue = queue
        self.id = f"\0dead_letter:{topic.epoch}:{topic.topic_id:x}"

    @property
    def is_here(self) -> bool:
        return self._shard.topics.get(self.topic.name) is self.topic and self.topic.leaving is None

    def first(self, count: int) -> list[int]:
        """Those that are next."""
        jobs = self.queue.jobs
        return [*islice((seq for seq in self.queue.parked if not jobs[seq].is_leaving), count)]

    def has(self, seq: int) -> bool:
        is_alive = self.is_here and self.topic.next_live(seq) == seq
        return is_alive and seq in self.queue.parked and not self.queue.jobs[seq].is_leaving

    def put_off(self, seq: int) -> None:
        """All others are before it."""
        if seq in self.queue.parked:
            self.queue.parked.move_to_end(seq)

    def end(self, seqs: list[int], told: Told) -> None:
        end_jobs(self._shard, self.topic, self.queue, seqs, lambda: told(None), told, is_dead_letter=True)


class _Run:
    """Until nothing more is to be moved."""

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
        """How long the next wait would be."""
        self._put_off_count = 0
        """Since one was moved, or since the last wait."""
        self._count_at_once = min(MOVED_AT_ONCE, shard.settings.max_batch_records)
        self._single_count = 0
        """So many go one by one, as they were refused together."""
        self._told_of: set[str] = set()
        """What keeps jobs here, each said once."""

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
            # They were read for the topic that was named before.
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
            # There may be room for some of them.
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
        """Some were put off."""
        if self._put_off_count < len(self._source.queue.parked):
            self._loop.call_soon(self.next)
        else:
            self._later()

    def _later(self) -> None:
        self._put_off_count = self._single_count = 0
        seconds = self._wait_seconds
        self._wait_seconds = min(2 * seconds, AGAIN_SECONDS_MAX)
        self._loop.call_later(seconds, self.next)
