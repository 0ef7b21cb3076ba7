"""Redrive: dead letters return to the queues they came from.

R1  The stamp in the meta of a dead letter names its queue. It is removed, and the record becomes a fresh job
    there. Records move by a transfer (`transfer.py`), each exactly once, also when a shard is killed. After
    such a crash, records of the last move may remain here until the next redrive to the same queue finds and
    deletes them.
R2  A record that its queue refuses stays, and the answer reports the number and the reasons: a refused move
    is retried one by one. When a shard is unavailable or overloaded, the redrive stops.
R3  One request does work bounded in count and time, and its answer says where to continue, so answers
    report the progress of a long redrive. It stops when its client disconnects.
R4  A topic has one redrive at a time: with two, neither would know which record was moved last.
R5  Moves are spread over each second, and no second has more records than the rate: with whole moves of equal
    distance alone, some seconds would have one move more.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

import msgspec

from shared.contract.errors import (
    CORRUPT_SEGMENT,
    FORBIDDEN,
    NOT_A_QUEUE,
    STATUS,
    STORE_UNAVAILABLE,
    TOPIC_EXISTS_INCOMPATIBLE,
    TOPIC_NOT_FOUND,
    Refusal,
    throttled,
)
from shared.contract.seek import Seek
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.engine.jobs import BackgroundJob, operation
from topicsd.engine.queue.job_records import JobRecords, decode_job_record, read_job_records
from topicsd.engine.read.seek import seek
from topicsd.engine.requests import DeleteAnswer, RenderedRecord
from topicsd.engine.retention.delete import join_delete
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import missing_topic
from topicsd.engine.transfer.dead_letter_stamp import take_off_stamp
from topicsd.engine.transfer.move import MovedRecord, SendMove, moved_record
from topicsd.engine.transfer.transfer import MOVED_AT_ONCE, Transfer, split_moves, wait_while_frozen
from topicsd.log.control_frame import Delete

logger = logging.getLogger("topicsd.engine")

SECONDS_MAX: Final = 10.0
MOVES_PER_SECOND: Final = 10
"""Moves per second for a requested rate above this."""
REFUSES_ALL: Final = (TOPIC_NOT_FOUND, NOT_A_QUEUE)
NO_ORIGIN: Final = "no_origin"


class RedriveRequest(msgspec.Struct, frozen=True):
    """The selected records after `after_seq`, at most `count` of them."""

    seqs: list[int] | None
    """Sorted seqs without duplicates, or None for all."""
    tag: str | None
    is_prefix: bool
    from_ts: int | None
    to_ts: int
    """Exclusive upper bound of the records' time."""
    after_seq: int
    count: int
    rate: int
    """Maximum records per second; 0 means unlimited."""
    is_dry: bool

    def matches(self, tag: str) -> bool:
        if self.tag is None:
            return True
        return tag.startswith(self.tag) if self.is_prefix else tag == self.tag


class RedriveAnswer(msgspec.Struct, frozen=True):
    """The progress of a redrive when it ended."""

    matched: int
    queues: dict[str, int]
    """The number of records moved to each queue; of a dry run, those that would be."""
    reasons: dict[str, int]
    """The number of records that stay for each reason."""
    stopped_by: str | None
    """The code of the refusal that ended the redrive early."""
    next_from_seq: int
    is_done: bool


RedriveReply = Callable[[RedriveAnswer | Refusal], object]
CoversName = Callable[[str], bool]
"""Returns whether the client may write to the topic of that name."""


class Redrives:
    """The redrives of a shard."""

    def __init__(self, shard: ShardState, send: SendMove) -> None:
        self._shard = shard
        self._send = send
        self._running: set[Topic] = set()

    def start(
        self, name: str, request: RedriveRequest, covers: CoversName, reply: RedriveReply
    ) -> Callable[[], None] | None:
        """Start a redrive of a topic; return a function that ends it early, or None after a refusal."""
        topic = self._admit(name)
        if isinstance(topic, Refusal):
            reply(topic)
            return None

        def on_end(outcome: RedriveAnswer | Refusal | Exception) -> None:
            self._running.discard(topic)
            if isinstance(outcome, Exception):
                outcome = refuse_unexpected_error(logger, "redrive", outcome)
            reply(outcome)

        self._running.add(topic)
        redrive = _Redrive(self._shard, topic, request, covers, self._send)
        self._shard.jobs.start(redrive.run(), on_end)
        return redrive.cancel

    def _admit(self, name: str) -> Topic | Refusal:
        topic = self._shard.visible_topic(name)
        if topic is not None and topic.is_frozen:
            return throttled(f'topic "{name}" is being moved')
        if topic is None or topic.deferred_requests is not None:
            return missing_topic(self._shard, name)
        if topic.queue is not None:
            dead_letter = topic.config.dead_letter
            target = (
                "its dead-letter topic" if dead_letter is None else f'its dead-letter topic "{dead_letter}"'
            )
            message = f'topic "{name}" is a queue; redrive {target} instead'
            return Refusal(TOPIC_EXISTS_INCOMPATIBLE, message)
        if topic in self._running:
            return throttled(f'a redrive of topic "{name}" is in progress')
        return topic


class _DeadLetterTopic:
    """The topic with the dead letters, as the source of a transfer."""

    def __init__(self, shard: ShardState, topic: Topic) -> None:
        self._shard = shard
        self._topic = topic
        self.id = f"\0redrive:{topic.epoch}:{topic.topic_id:x}"

    def has(self, seq: int) -> bool:
        return self._shard.is_live(self._topic) and self._topic.next_live(seq) == seq <= self._topic.head

    def delete(self, seqs: list[int]) -> BackgroundJob[Refusal | None]:
        shard, topic = self._shard, self._topic
        yield from wait_while_frozen(topic)
        seqs = [seq for seq in seqs if self.has(seq)]
        refusal = shard.log.admit_control()
        if refusal is not None:
            return refusal
        control = Delete(0, None, False, seqs)

        def start(reply: Callable[[DeleteAnswer | Refusal], object]) -> None:
            join_delete(shard, topic, control, reply, waits_for_sync=True)

        answer = yield from operation(start)
        return answer if isinstance(answer, Refusal) else None


class _Redrive:
    def __init__(
        self, shard: ShardState, topic: Topic, request: RedriveRequest, covers: CoversName, send: SendMove
    ) -> None:
        self._shard = shard
        self._topic = topic
        self._request = request
        self._covers = covers
        self._source = _DeadLetterTopic(shard, topic)
        self._transfer = Transfer(self._source, send, is_redrive=True)
        self._deadline = shard.clock.monotonic() + SECONDS_MAX
        self._moves: deque[tuple[str, list[MovedRecord]]] = deque()
        """Records read and still to be moved, by queue."""
        self._unmoved: list[tuple[int, str]] = []
        """Records read that stay here, with the reason."""
        self._read_seq = self._settled_seq = request.after_seq
        """Highest seq read, and highest seq settled."""
        self._is_past_end = False
        """Whether every later record is outside the request."""
        self._count = 0
        self._queues: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._is_cancelled = False
        self._recent: deque[tuple[float, int]] = deque()
        """The moves of the last second: the time of each, and its number of records."""
        self._recent_count = 0
        """The number of records in `_recent`."""
        count = max(1, request.rate // MOVES_PER_SECOND) if request.rate else MOVED_AT_ONCE
        self._move_size = min(MOVED_AT_ONCE, count, shard.settings.max_batch_records)

    def cancel(self) -> None:
        """End the redrive before its next move."""
        self._is_cancelled = True

    def run(self) -> BackgroundJob[RedriveAnswer | Refusal]:
        """Read and move records until none is left to move, or until a bound or a refusal ends it."""
        if self._request.from_ts is not None:
            position = Seek(from_ts=self._request.from_ts)
            cursor = yield from operation(partial(seek, self._shard, self._topic.name, position))
            if isinstance(cursor, Refusal):
                return cursor
            self._read_seq = self._settled_seq = max(self._settled_seq, cursor)
        while not self._is_cancelled and self._shard.clock.monotonic() < self._deadline:
            if self._moves:
                wait_seconds = self._wait_seconds(len(self._moves[0][1]))
                if wait_seconds:
                    yield wait_seconds
                    continue
                stopped_by = yield from self._move(*self._moves.popleft())
                if stopped_by is not None:
                    return self._answer(is_done=False, stopped_by=stopped_by)
                continue
            self._settle(self._read_seq)
            if self._is_past_end:
                return self._answer(is_done=True)
            if self._count >= self._request.count:
                return self._answer(is_done=False)
            seqs = self._next_seqs()
            if not seqs:
                return self._answer(is_done=True)
            texts = yield from operation(partial(read_job_records, self._shard, self._topic, seqs))
            self._plan_moves(seqs, texts)
            # There may be many records, and few that match.
            yield None
        return self._answer(is_done=False)

    def _next_seqs(self) -> list[int]:
        """Return the next records to read, none at the end of the topic."""
        if not self._shard.is_live(self._topic):
            return []
        topic, cursor = self._topic, self._settled_seq
        if self._request.seqs is not None:
            live = (seq for seq in self._request.seqs if seq > cursor and self._source.has(seq))
            return [*islice(live, MOVED_AT_ONCE)]
        seqs: list[int] = []
        while len(seqs) < MOVED_AT_ONCE and (cursor := topic.next_live(cursor + 1)) <= topic.head:
            seqs.append(cursor)
        return seqs

    def _plan_moves(self, seqs: list[int], texts: JobRecords) -> None:
        """Select records, and distribute them to moves by queue."""
        remaining = self._request.count - self._count
        by_queue: dict[str, list[MovedRecord]] = {}
        for seq in seqs:
            text = texts.by_seq.get(seq)
            record = None if text is None else decode_job_record(text)
            self._is_past_end = record is not None and record.ts >= self._request.to_ts
            if self._is_past_end or not remaining:
                break
            self._read_seq = seq
            # A record with neither text nor damage was deleted in the meantime.
            is_selected = seq in texts.damaged if record is None else self._request.matches(record.tag)
            if is_selected:
                remaining -= 1
                self._sort(seq, record, by_queue, STORE_UNAVAILABLE if seq in texts.away else CORRUPT_SEGMENT)
        for queue, records in by_queue.items():
            self._moves += [(queue, move) for move in split_moves(records, self._move_size)]

    def _sort(
        self,
        seq: int,
        record: RenderedRecord | None,
        by_queue: dict[str, list[MovedRecord]],
        unreadable: str,
    ) -> None:
        """Add a record to the moves of its queue, or to the records that do not move, with the reason."""
        origin = None if record is None else take_off_stamp(bytes(record.meta))
        if origin is None or record is None:
            self._unmoved.append((seq, unreadable if record is None else NO_ORIGIN))
        elif not self._covers(origin.queue):
            # Any client that may write to this topic can have forged the name.
            self._unmoved.append((seq, FORBIDDEN))
        elif self._request.is_dry:
            self._count += 1
            self._queues[origin.queue] += 1
        else:
            by_queue.setdefault(origin.queue, []).append(moved_record(record, origin.meta))

    def _wait_seconds(self, count: int) -> float:
        """Return the time until `count` more records keep the rate, or 0 if they do now (R5)."""
        rate, recent, now = self._request.rate, self._recent, self._shard.clock.monotonic()
        while recent and recent[0][0] <= now - 1:
            self._recent_count -= recent.popleft()[1]
        if not rate or self._recent_count + count <= rate:
            return 0.0
        # A timer may fire slightly early.
        return max(0.001, recent[0][0] + 1 - now)

    def _move(self, queue: str, records: list[MovedRecord]) -> BackgroundJob[str | None]:
        """Make one move at the requested rate; return the code of a refusal that ends the redrive."""
        # A record may have been deleted meanwhile, for example because the destination named it.
        records = [record for record in records if self._source.has(record.seq)]
        refusal = yield from self._transfer.move(queue, records)
        if refusal is not None and STATUS[refusal.code] in (429, *range(500, 600)):
            self._moves.appendleft((queue, records))
            return refusal.code
        if refusal is None:
            self._count += len(records)
            self._queues[queue] += len(records)
        elif len(records) == 1 or refusal.code in REFUSES_ALL:
            self._unmoved += [(record.seq, refusal.code) for record in records]
        else:
            self._moves.extendleft((queue, [record]) for record in reversed(records))
            records = []
        if self._request.rate and records:
            self._recent.append((self._shard.clock.monotonic(), len(records)))
            self._recent_count += len(records)
            yield len(records) / self._request.rate
        else:
            yield None
        return None

    def _settle(self, last_seq: int) -> None:
        """Settle every record up to `last_seq`, none of which is in a move."""
        self._settled_seq = max(self._settled_seq, last_seq)
        reasons = [reason for seq, reason in self._unmoved if seq <= last_seq]
        self._count += len(reasons)
        self._reasons.update(reasons)
        self._unmoved.clear()

    def _answer(self, is_done: bool, stopped_by: str | None = None) -> RedriveAnswer:
        waiting = [record.seq for _, records in self._moves for record in records]
        self._settle(min(waiting) - 1 if waiting else self._read_seq)
        return RedriveAnswer(self._count, self._queues, self._reasons, stopped_by, self._settled_seq, is_done)
