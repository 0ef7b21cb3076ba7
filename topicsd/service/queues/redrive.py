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
from collections.abc import Callable
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
from topicsd.engine.queue.job_records import Texts, decode_text, read_texts
from topicsd.engine.read.seek import seek
from topicsd.engine.requests import Deleted, RenderedRecord
from topicsd.engine.retention.delete import PendingDelete
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import topic_not_found
from topicsd.log.control_frame import Delete
from topicsd.service.call import Call, reply_of
from topicsd.service.input.bound_names import is_within
from topicsd.service.input.clamped import member
from topicsd.service.queues.redrive_body import Wanted, decode_redrive
from topicsd.service.queues.transfer import MOVED_AT_ONCE, Ask, Letter, Moving, Told, at_once
from topicsd.service.render import encode

OPERATION: Final = "bring_back"
SECONDS_MAX: Final = 10.0
MOVES_A_SECOND: Final = 10
"""Moves per second for a requested rate above this."""
REFUSES_ALL: Final = (TOPIC_NOT_FOUND, NOT_A_QUEUE)
NO_ORIGIN: Final = "no_origin"
RETRY_AFTER_MS: Final = 1000

Performance = Callable[[Call], dict[str, float]]


class Redrives:
    """The redrives of a shard; `ask` runs an operation on a topic at its owner."""

    def __init__(self, shard: ShardState, loop: Loop, ask: Ask, performance: Performance) -> None:
        self.shard = shard
        self.loop = loop
        self.ask = ask
        self.performance = performance
        self.running: set[Topic] = set()

    def start(self, call: Call) -> None:
        wanted = decode_redrive(call.body, self.shard.clock.now_ms())
        topic = self.shard.visible_topic(call.name)
        if isinstance(wanted, Refusal):
            call.refuse(wanted)
        elif topic is None or topic.leaving is not None:
            call.refuse(topic_not_found(call.name))
        elif topic.queue is not None:
            dead_letter = topic.config.dead_letter
            such = "" if dead_letter is None else f', "{dead_letter}"'
            message = f'topic "{topic.name}" is a queue; redrive the log with its dead letters{such}'
            call.refuse(Refusal(TOPIC_EXISTS_INCOMPATIBLE, message))
        elif topic in self.running:
            message = f'a redrive of topic "{topic.name}" is in progress, retry later'
            call.refuse(Refusal(THROTTLED, message, retry_after_ms=RETRY_AFTER_MS))
        else:
            self.running.add(topic)
            _Redrive(self, call, topic, wanted).begin()


class _Letters:
    """The topic with the dead letters, as the source of a transfer."""

    def __init__(self, shard: ShardState, topic: Topic) -> None:
        self._shard = shard
        self._topic = topic
        self.id = f"\0redrive:{topic.epoch}:{topic.topic_id:x}"

    @property
    def is_here(self) -> bool:
        return self._shard.topics.get(self._topic.name) is self._topic and self._topic.leaving is None

    def has(self, seq: int) -> bool:
        return self.is_here and self._topic.next_live(seq) == seq <= self._topic.head

    def end(self, seqs: list[int], told: Told) -> None:
        shard, topic = self._shard, self._topic
        refusal = shard.log.admit_control()
        if refusal is not None:
            told(refusal)
            return
        control = Delete(0, None, False, seqs)

        def deleted(answer: Deleted | Refusal) -> None:
            told(answer if isinstance(answer, Refusal) else None)

        shard.join_control(
            topic, control, PendingDelete(shard, topic, control, None, deleted), waits_for_sync=True
        )


class _Redrive:
    def __init__(self, redrives: Redrives, call: Call, topic: Topic, wanted: Wanted) -> None:
        self._redrives = redrives
        self._call = call
        self._topic = topic
        self._wanted = wanted
        self._letters = _Letters(redrives.shard, topic)
        self._moving = Moving(self._letters, OPERATION, redrives.ask, redrives.shard.clock.monotonic)
        self._until = redrives.shard.clock.monotonic() + SECONDS_MAX
        self._moves: deque[tuple[str, list[Letter]]] = deque()
        """Records read and still to be moved, by queue."""
        self._stays: list[tuple[int, str]] = []
        """Records read that stay here, with the reason."""
        self._upto = self._cursor = wanted.after_seq
        """Highest seq read, and highest seq settled."""
        self._is_last = False
        """Whether every later record is outside the request."""
        self._count = 0
        self._queues: Counter[str] = Counter()
        self._stayed: Counter[str] = Counter()
        self._is_hurried = False
        count = max(1, wanted.rate // MOVES_A_SECOND) if wanted.rate else MOVED_AT_ONCE
        self._count_at_once = min(MOVED_AT_ONCE, count, redrives.shard.settings.max_batch_records)

    def begin(self) -> None:
        self._call.hurry = self._hurry
        if self._wanted.from_ts is None:
            self._go_on()
            return
        reply = reply_of(self._call, self._placed)
        seek(self._redrives.shard, self._topic.name, Seek(from_ts=self._wanted.from_ts), reply)

    def _placed(self, cursor: int) -> None:
        self._upto = self._cursor = max(self._cursor, cursor)
        self._go_on()

    def _hurry(self) -> None:
        self._is_hurried = True

    # -- steps ---------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        try:
            self._step()
        except Exception as error:
            self._leave()
            self._call.fail("redrive", error)

    def _step(self) -> None:
        if self._is_hurried or self._redrives.shard.clock.monotonic() >= self._until:
            self._answer(is_done=False)
        elif self._moves:
            self._move(*self._moves.popleft())
        else:
            self._settle(self._upto)
            self._read_on()

    def _read_on(self) -> None:
        if self._is_last:
            self._answer(is_done=True)
        elif self._count >= self._wanted.count:
            self._answer(is_done=False)
        elif seqs := self._next_seqs() if self._letters.is_here else []:
            read_texts(self._redrives.shard, self._topic, seqs, partial(self._read, seqs))
        else:
            self._answer(is_done=True)

    def _next_seqs(self) -> list[int]:
        topic, cursor = self._topic, self._cursor
        if self._wanted.seqs is not None:
            alive = (seq for seq in self._wanted.seqs if seq > cursor and self._letters.has(seq))
            return [seq for seq, _ in zip(alive, range(MOVED_AT_ONCE), strict=False)]
        seqs: list[int] = []
        while len(seqs) < MOVED_AT_ONCE and (cursor := topic.next_live(cursor + 1)) <= topic.head:
            seqs.append(cursor)
        return seqs

    def _read(self, seqs: list[int], texts: Texts) -> None:
        left = self._wanted.count - self._count
        by_queue: dict[str, list[Letter]] = {}
        for seq in seqs:
            text = texts.by_seq.get(seq)
            record = None if text is None else decode_text(text)
            self._is_last = record is not None and record.ts >= self._wanted.to_ts
            if self._is_last or not left:
                break
            self._upto = seq
            # A record with neither text nor damage was deleted in the meantime.
            is_meant = seq in texts.damaged if record is None else self._wanted.fits(record.tag)
            if is_meant:
                left -= 1
                self._sort(seq, record, by_queue)
        for queue, letters in by_queue.items():
            self._moves += [(queue, some) for some in at_once(letters, self._count_at_once)]
        # In a turn of its own: there may be many records, and few that match.
        self._redrives.loop.call_soon(self._go_on)

    def _sort(self, seq: int, record: RenderedRecord | None, by_queue: dict[str, list[Letter]]) -> None:
        origin = None if record is None else take_off_stamp(bytes(record.meta))
        if origin is None or record is None:
            self._stays.append((seq, CORRUPT_SEGMENT if record is None else NO_ORIGIN))
        elif not is_within(self._call.prefixes, origin.queue):
            # Any client that may write to this topic can have forged the name.
            self._stays.append((seq, FORBIDDEN))
        elif self._wanted.is_dry:
            self._count += 1
            self._queues[origin.queue] += 1
        else:
            by_queue.setdefault(origin.queue, []).append(Letter(seq, record, origin.meta))

    def _move(self, queue: str, letters: list[Letter]) -> None:
        # A record may have been deleted meanwhile, for example because the destination named it.
        letters = [one for one in letters if self._letters.has(one.seq)]
        self._moving.move(queue, letters, partial(self._told, queue, letters))

    def _told(self, queue: str, letters: list[Letter], refusal: Refusal | None) -> None:
        if refusal is not None and STATUS[refusal.code] in (429, *range(500, 600)):
            self._moves.appendleft((queue, letters))
            self._answer(is_done=False, stopped_by=refusal.code)
            return
        if refusal is None:
            self._count += len(letters)
            self._queues[queue] += len(letters)
        elif len(letters) == 1 or refusal.code in REFUSES_ALL:
            self._stays += [(one.seq, refusal.code) for one in letters]
        else:
            self._moves.extendleft((queue, [one]) for one in reversed(letters))
            letters = []
        if self._wanted.rate and letters:
            self._redrives.loop.call_later(len(letters) / self._wanted.rate, self._go_on)
        else:
            self._redrives.loop.call_soon(self._go_on)

    # -- the end -------------------------------------------------------------------------------------------

    def _settle(self, upto: int) -> None:
        """Settle every record up to `upto`, none of which is in a move."""
        self._cursor = max(self._cursor, upto)
        reasons = [reason for seq, reason in self._stays if seq <= upto]
        self._count += len(reasons)
        self._stayed.update(reasons)
        self._stays.clear()

    def _leave(self) -> None:
        self._redrives.running.discard(self._topic)
        self._call.hurry = None

    def _answer(self, is_done: bool, stopped_by: str | None = None) -> None:
        self._leave()
        waiting = [one.seq for _, letters in self._moves for one in letters]
        self._settle(min(waiting) - 1 if waiting else self._upto)
        body: dict[str, object] = {
            "topic": self._topic.name,
            "matched": self._count,
            "redriven": 0 if self._wanted.is_dry else self._queues.total(),
            "queues": self._queues,
            "stayed": self._stayed.total(),
            "reasons": self._stayed,
            "stopped_by": stopped_by,
            "next_from_seq": self._cursor,
            "done": is_done,
            **member(self._wanted.clamped),
            "performance": self._redrives.performance(self._call),
        }
        self._call.send(encode(body))
