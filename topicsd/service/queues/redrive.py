"""Redrive: dead letters return to the queues they came from.

R1  The stamp in the meta of a dead letter names its queue. It is removed, and the record becomes a fresh job
    there. Records move by a transfer (`transfer.py`), each exactly once, also when a shard is killed. After
    such a crash, records of the last move may remain here until the next redrive to the same queue finds and
    deletes them.
R2  A record that its queue refuses stays, and the response reports the number and the reasons: a refused move
    is retried one by one. When a shard is unavailable or overloaded, the redrive stops.
R3  One request does work bounded in count and time, and its response says where to continue, so responses
    report the progress of a long redrive. It stops when its client disconnects.
R4  A topic has one redrive at a time: with two, neither would know which record was moved last.
"""

from __future__ import annotations

from collections import Counter, deque
from functools import partial
from typing import Final

from shared.contract.errors import (
    CORRUPT_SEGMENT,
    FORBIDDEN,
    NOT_A_QUEUE,
    STATUS,
    THROTTLED,
    TOPIC_EXISTS_INCOMPATIBLE,
    TOPIC_NOT_FOUND,
    Refusal,
)
from shared.contract.seek import Seek
from shared.runtime.disk_thread import Loop
from topicsd.engine.queue.dead_letter import take_off_stamp
from topicsd.engine.queue.job_records import JobRecords, decode_job_record, read_job_records
from topicsd.engine.read.seek import seek
from topicsd.engine.requests import DeleteAnswer, RenderedRecord
from topicsd.engine.retention.delete import join_delete
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import topic_not_found
from topicsd.log.control_frame import Delete
from topicsd.service.call import Call, Performance, reply_of
from topicsd.service.input.bound_names import is_within
from topicsd.service.input.clamped import member
from topicsd.service.queues.redrive_body import RedriveRequest, decode_redrive
from topicsd.service.queues.transfer import (
    MOVED_AT_ONCE,
    MoveReply,
    RunAtOwner,
    Transfer,
    TransferRecord,
    split_moves,
)
from topicsd.service.render import encode

OPERATION: Final = "bring_back"
SECONDS_MAX: Final = 10.0
MOVES_PER_SECOND: Final = 10
"""Moves per second for a requested rate above this."""
REFUSES_ALL: Final = (TOPIC_NOT_FOUND, NOT_A_QUEUE)
NO_ORIGIN: Final = "no_origin"
RETRY_AFTER_MS: Final = 1000


class Redrives:
    """The redrives of a shard; `ask` runs an operation on a topic at its owner."""

    def __init__(
        self, shard: ShardState, loop: Loop, run_at_owner: RunAtOwner, performance: Performance
    ) -> None:
        self.shard = shard
        self.loop = loop
        self.run_at_owner = run_at_owner
        self.performance = performance
        self.running: set[Topic] = set()

    def start(self, call: Call) -> None:
        request = decode_redrive(call.body, self.shard.clock.now_ms())
        topic = self.shard.visible_topic(call.name)
        if isinstance(request, Refusal):
            call.refuse(request)
        elif topic is None or topic.deferred_requests is not None:
            call.refuse(topic_not_found(call.name))
        elif topic.queue is not None:
            dead_letter = topic.config.dead_letter
            target = (
                "its dead-letter topic" if dead_letter is None else f'its dead-letter topic "{dead_letter}"'
            )
            message = f'topic "{topic.name}" is a queue; redrive {target} instead'
            call.refuse(Refusal(TOPIC_EXISTS_INCOMPATIBLE, message))
        elif topic in self.running:
            message = f'a redrive of topic "{topic.name}" is in progress, retry later'
            call.refuse(Refusal(THROTTLED, message, retry_after_ms=RETRY_AFTER_MS))
        else:
            self.running.add(topic)
            _Redrive(self, call, topic, request).begin()


class _DeadLetterTopic:
    """The topic with the dead letters, as the source of a transfer."""

    def __init__(self, shard: ShardState, topic: Topic) -> None:
        self._shard = shard
        self._topic = topic
        self.id = f"\0redrive:{topic.epoch}:{topic.topic_id:x}"

    @property
    def is_live(self) -> bool:
        return (
            self._shard.topics.get(self._topic.name) is self._topic and self._topic.deferred_requests is None
        )

    def has(self, seq: int) -> bool:
        return self.is_live and self._topic.next_live(seq) == seq <= self._topic.head

    def delete(self, seqs: list[int], reply: MoveReply) -> None:
        shard, topic = self._shard, self._topic
        refusal = shard.log.admit_control()
        if refusal is not None:
            reply(refusal)
            return
        control = Delete(0, None, False, seqs)

        def on_deleted(answer: DeleteAnswer | Refusal) -> None:
            reply(answer if isinstance(answer, Refusal) else None)

        join_delete(shard, topic, control, on_deleted, waits_for_sync=True)


class _Redrive:
    def __init__(self, redrives: Redrives, call: Call, topic: Topic, request: RedriveRequest) -> None:
        self._redrives = redrives
        self._call = call
        self._topic = topic
        self._request = request
        self._source = _DeadLetterTopic(redrives.shard, topic)
        self._transfer = Transfer(
            self._source, OPERATION, redrives.run_at_owner, redrives.shard.clock.monotonic
        )
        self._deadline = redrives.shard.clock.monotonic() + SECONDS_MAX
        self._moves: deque[tuple[str, list[TransferRecord]]] = deque()
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
        count = max(1, request.rate // MOVES_PER_SECOND) if request.rate else MOVED_AT_ONCE
        self._move_size = min(MOVED_AT_ONCE, count, redrives.shard.settings.max_batch_records)

    def begin(self) -> None:
        self._call.cancel_wait = self._cancel
        if self._request.from_ts is None:
            self._resume()
            return
        reply = reply_of(self._call, self._begin_after)
        seek(self._redrives.shard, self._topic.name, Seek(from_ts=self._request.from_ts), reply)

    def _begin_after(self, cursor: int) -> None:
        self._read_seq = self._settled_seq = max(self._settled_seq, cursor)
        self._resume()

    def _cancel(self) -> None:
        self._is_cancelled = True

    # -- steps ---------------------------------------------------------------------------------------------

    def _resume(self) -> None:
        try:
            self._step()
        except Exception as error:
            self._release()
            self._call.fail("redrive", error)

    def _step(self) -> None:
        if self._is_cancelled or self._redrives.shard.clock.monotonic() >= self._deadline:
            self._answer(is_done=False)
        elif self._moves:
            self._move(*self._moves.popleft())
        else:
            self._settle(self._read_seq)
            self._read_next()

    def _read_next(self) -> None:
        if self._is_past_end:
            self._answer(is_done=True)
        elif self._count >= self._request.count:
            self._answer(is_done=False)
        elif seqs := self._next_seqs() if self._source.is_live else []:
            read_job_records(self._redrives.shard, self._topic, seqs, partial(self._on_read, seqs))
        else:
            self._answer(is_done=True)

    def _next_seqs(self) -> list[int]:
        topic, cursor = self._topic, self._settled_seq
        if self._request.seqs is not None:
            live = (seq for seq in self._request.seqs if seq > cursor and self._source.has(seq))
            return [seq for seq, _ in zip(live, range(MOVED_AT_ONCE), strict=False)]
        seqs: list[int] = []
        while len(seqs) < MOVED_AT_ONCE and (cursor := topic.next_live(cursor + 1)) <= topic.head:
            seqs.append(cursor)
        return seqs

    def _on_read(self, seqs: list[int], texts: JobRecords) -> None:
        remaining = self._request.count - self._count
        by_queue: dict[str, list[TransferRecord]] = {}
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
                self._sort(seq, record, by_queue)
        for queue, records in by_queue.items():
            self._moves += [(queue, move) for move in split_moves(records, self._move_size)]
        # In a separate turn: there may be many records, and few that match.
        self._redrives.loop.call_soon(self._resume)

    def _sort(
        self, seq: int, record: RenderedRecord | None, by_queue: dict[str, list[TransferRecord]]
    ) -> None:
        origin = None if record is None else take_off_stamp(bytes(record.meta))
        if origin is None or record is None:
            self._unmoved.append((seq, CORRUPT_SEGMENT if record is None else NO_ORIGIN))
        elif not is_within(self._call.prefixes, origin.queue):
            # Any client that may write to this topic can have forged the name.
            self._unmoved.append((seq, FORBIDDEN))
        elif self._request.is_dry:
            self._count += 1
            self._queues[origin.queue] += 1
        else:
            by_queue.setdefault(origin.queue, []).append(TransferRecord(seq, record, origin.meta))

    def _move(self, queue: str, records: list[TransferRecord]) -> None:
        # A record may have been deleted meanwhile, for example because the destination named it.
        records = [entry for entry in records if self._source.has(entry.seq)]
        self._transfer.move(queue, records, partial(self._on_moved, queue, records))

    def _on_moved(self, queue: str, records: list[TransferRecord], refusal: Refusal | None) -> None:
        if refusal is not None and STATUS[refusal.code] in (429, *range(500, 600)):
            self._moves.appendleft((queue, records))
            self._answer(is_done=False, stopped_by=refusal.code)
            return
        if refusal is None:
            self._count += len(records)
            self._queues[queue] += len(records)
        elif len(records) == 1 or refusal.code in REFUSES_ALL:
            self._unmoved += [(entry.seq, refusal.code) for entry in records]
        else:
            self._moves.extendleft((queue, [entry]) for entry in reversed(records))
            records = []
        if self._request.rate and records:
            self._redrives.loop.call_later(len(records) / self._request.rate, self._resume)
        else:
            self._redrives.loop.call_soon(self._resume)

    # -- the end -------------------------------------------------------------------------------------------

    def _settle(self, last_seq: int) -> None:
        """Settle every record up to `last_seq`, none of which is in a move."""
        self._settled_seq = max(self._settled_seq, last_seq)
        reasons = [reason for seq, reason in self._unmoved if seq <= last_seq]
        self._count += len(reasons)
        self._reasons.update(reasons)
        self._unmoved.clear()

    def _release(self) -> None:
        self._redrives.running.discard(self._topic)
        self._call.cancel_wait = None

    def _answer(self, is_done: bool, stopped_by: str | None = None) -> None:
        self._release()
        waiting = [entry.seq for _, records in self._moves for entry in records]
        self._settle(min(waiting) - 1 if waiting else self._read_seq)
        body: dict[str, object] = {
            "topic": self._topic.name,
            "matched": self._count,
            "redriven": 0 if self._request.is_dry else self._queues.total(),
            "queues": self._queues,
            "stayed": self._reasons.total(),
            "reasons": self._reasons,
            "stopped_by": stopped_by,
            "next_from_seq": self._settled_seq,
            "done": is_done,
            **member(self._request.clamped),
            "performance": self._redrives.performance(self._call),
        }
        self._call.send(encode(body))
