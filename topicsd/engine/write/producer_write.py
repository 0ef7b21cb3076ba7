"""A write numbered by its producer: applied once, however often and however late it is sent.

P1  A producer may begin with any seq; each later write has the next seq. A jump is refused, and a seq that
    was used before is answered as a duplicate.
P2  Pending writes count: the next write may arrive before the one before it is published, and a repeat of a
    pending write waits for its outcome.
P3  Only the answer of the last write is kept. An older write is known to be done, but not its seqs.
P4  A move of one or several records from another topic is numbered by the highest of their seqs in the
    source; these numbers need not rise. The mover has one pending move at a time and names its previous move.
    If the last move known here is another one, or was of other records, the move is refused, and the refusal
    names all records of the last move. A mover whose answer was lost thus finds its last move before a new
    move replaces it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.contract.errors import PRODUCER_GAP, Refusal, excluded, invalid, limit_reached, throttled
from shared.contract.topic_config import NUMBER_MAX
from topicsd.engine.requests import AppendAnswer, AppendRequest, ProducerSeq, Reply, TransferSeq
from topicsd.engine.shard_data import ShardData
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.write.producers import Producers, ProducerWrite
from topicsd.log import control_frame
from topicsd.log.control_frame import ControlPayload

if TYPE_CHECKING:
    from topicsd.engine.write.append import PendingAppend

PRODUCER_CHARACTERS_MAX = 256


def producer_of(request: AppendRequest, producer: ProducerSeq) -> ProducerKey | Refusal:
    if isinstance(producer, TransferSeq):
        return TransferKey(producer)
    if request.idempotency_key is not None:
        return excluded("producer", "idempotency_key")
    length = len(producer.id)
    if not 0 < length <= PRODUCER_CHARACTERS_MAX:
        rule = f"must be 1 to {PRODUCER_CHARACTERS_MAX} characters, got {length}"
        return invalid("producer.id", rule, PRODUCER_CHARACTERS_MAX)
    if not 0 <= producer.seq <= NUMBER_MAX:
        return invalid("producer.seq", f"must be from 0 to {NUMBER_MAX}, got {producer.seq}")
    return ProducerKey(producer.id, producer.seq)


class ProducerKey:
    """The identity of a numbered write: producer, seq, and the moved seqs of a move."""

    __slots__ = ("moved", "producer", "producer_seq")

    def __init__(self, producer: str, producer_seq: int, moved: tuple[int, ...] = ()) -> None:
        self.producer = producer
        self.producer_seq = producer_seq
        self.moved = moved

    def answer_if_duplicate(
        self, shard: ShardState, topic: Topic, now_ms: int, reply: Reply[AppendAnswer]
    ) -> bool:
        """Answer a repeat, a jump or a producer without room; return False for a new write."""
        pending_writes = topic.pending_writes.get(self.producer)
        known = topic.producers.find(self.producer) if topic.producers is not None else None
        if pending_writes:
            last = _seq_of(pending_writes[-1])
            if known is None or self.producer_seq > known.producer_seq:
                place = self.producer_seq - _seq_of(pending_writes[0])
                if place < 0:
                    _add_reply(pending_writes[0], lambda answer: reply(_answer_without_seqs(answer)))
                    return True
                if place < len(pending_writes):
                    _add_reply(pending_writes[place], reply)
                    return True
        elif known is not None:
            last = known.producer_seq
        else:
            return self._refuse_if_full(shard, topic, now_ms, reply)
        if self.producer_seq > last + 1:
            message = f"producer.seq: must be {last + 1}, the next of this producer, got {self.producer_seq}"
            detail: dict[str, object] = {"field": "producer.seq", "last_seq": last, "next_seq": last + 1}
            reply(Refusal(PRODUCER_GAP, message, detail))
            return True
        if self.producer_seq == last + 1:
            return False
        assert known is not None
        _answer_repeat(topic, known, self.producer_seq, reply)
        return True

    def _refuse_if_full(
        self, shard: ShardState, topic: Topic, now_ms: int, reply: Reply[AppendAnswer]
    ) -> bool:
        bound = shard.settings.max_producers
        known = topic.producers or Producers()
        new_count = sum(name not in known for name in topic.pending_writes)
        if known.has_room(bound, new_count, now_ms):
            return False
        reply(limit_reached("max_producers", bound, f'topic "{topic.name}" cannot have more producers'))
        return True

    def on_join(self, pending: PendingAppend) -> ControlPayload:
        """Note the write as pending; return the frame to log before its records."""
        topic = pending.topic
        if not topic.pending_writes:
            topic.pending_writes = {}
        topic.pending_writes.setdefault(self.producer, []).append(pending)
        return control_frame.ProducerFrame(
            self.producer, self.producer_seq, pending.first_seq, len(pending.encoded[1]), self.moved
        )

    def on_commit(self, pending: PendingAppend) -> None:
        """Store the published write as the last one of the producer."""
        self.on_abort(pending)
        count = len(pending.encoded[1])
        write = ProducerWrite(self.producer_seq, pending.first_seq, count, pending.ts, self.moved)
        store_producer_write(pending.shard, pending.topic, self.producer, write)

    def on_abort(self, pending: PendingAppend) -> None:
        """Forget the pending write; called by the undo of a failed write, and by its refusal."""
        pending_writes = pending.topic.pending_writes.get(self.producer, [])
        if pending in pending_writes:
            pending_writes.remove(pending)
            if not pending_writes:
                del pending.topic.pending_writes[self.producer]


class TransferKey(ProducerKey):
    """The identity of a move (P4). There are at most as many movers as topics, so all have room."""

    __slots__ = ("_after",)

    def __init__(self, move: TransferSeq) -> None:
        super().__init__(move.id, move.seq, _moved(move))
        self._after = move.after

    def answer_if_duplicate(
        self, shard: ShardState, topic: Topic, now_ms: int, reply: Reply[AppendAnswer]
    ) -> bool:
        known = topic.producers.find(self.producer) if topic.producers is not None else None
        pending_writes = topic.pending_writes.get(self.producer)
        if pending_writes:
            last = pending_writes[-1].key
            assert isinstance(last, ProducerKey)
            if (last.producer_seq, last.moved) == (self.producer_seq, self.moved):
                _add_reply(pending_writes[-1], reply)
            else:
                reply(throttled("the previous transfer is still in progress"))
        elif known is None and self._after is None:
            return False
        elif known is not None and (known.producer_seq, known.moved) == (self.producer_seq, self.moved):
            _answer_repeat(topic, known, self.producer_seq, reply)
        elif known is not None and self._after == known.producer_seq != self.producer_seq:
            return False
        else:
            reply(self._refusal(known))
        return True

    def _refusal(self, known: ProducerWrite | None) -> Refusal:
        last = None if known is None else known.producer_seq
        message = f"after: must be {last}, the last transfer, got {self._after}"
        detail: dict[str, object] = {"field": "after", "last_seq": last}
        if known is not None and known.moved:
            detail["last_seqs"] = known.moved
        return Refusal(PRODUCER_GAP, message, detail)


def _moved(move: TransferSeq) -> tuple[int, ...]:
    return tuple(move.seqs) if len(move.seqs) > 1 else ()


def store_producer_write(shard: ShardData, topic: Topic, producer: str, write: ProducerWrite) -> None:
    if topic.producers is None:
        topic.producers = Producers()
    topic.producers.store(producer, write, shard.settings.max_producers)


def is_known_write(topic: Topic, producer: ProducerSeq) -> bool:
    """Return whether this write was applied before or is pending."""
    known = topic.producers.find(producer.id) if topic.producers is not None else None
    pending_writes = topic.pending_writes.get(producer.id)
    last = _seq_of(pending_writes[-1]) if pending_writes else -1 if known is None else known.producer_seq
    if isinstance(producer, TransferSeq):
        key = pending_writes[-1].key if pending_writes else known
        moved = key.moved if isinstance(key, ProducerKey | ProducerWrite) else ()
        return (last, moved) == (producer.seq, _moved(producer))
    return producer.seq <= last


def _answer_repeat(topic: Topic, known: ProducerWrite, producer_seq: int, reply: Reply[AppendAnswer]) -> None:
    first, end = 0, 0
    if producer_seq == known.producer_seq:
        first, end = known.first_seq, known.first_seq + known.records_count - 1
    reply(AppendAnswer(topic.name, first, end, topic.head, False, True, topic.config.durability))


def _seq_of(pending: PendingAppend) -> int:
    assert isinstance(pending.key, ProducerKey)
    return pending.key.producer_seq


def _add_reply(pending: PendingAppend, reply: Reply[AppendAnswer]) -> None:
    pending.duplicate_replies = [*(pending.duplicate_replies or ()), reply]


def _answer_without_seqs(answer: AppendAnswer | Refusal) -> AppendAnswer | Refusal:
    if isinstance(answer, Refusal):
        return answer
    return AppendAnswer(answer.topic, 0, 0, answer.head_seq, False, True, answer.durability)
