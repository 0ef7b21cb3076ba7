"""The book of a history of shared topics: what clients sent and saw, and what must hold of it.

K1  One value for each seq, at any time and at any broker.
K2  An append that was acknowledged has its values at its seqs, unless they were removed.
K3  An append that was acknowledged before another one was sent has the lower seqs. Appends of one connection
    to one topic have their order, also when they were sent together.
K4  Nothing appears twice.
K5  An append that definitely failed is never read.
K6  What a read passes over was removed by a client, or is reported.
K7  The head that a broker answers never falls, and is never above the committed one. A read that has caught
    up is outdated by at most the time of a poll.
K8  Removed records are not read any more after the age of a row.
K9  A topic whose fence was acknowledged gets no records until it is opened.
K10 A read is answered before its time only with `min_bytes`, a full topic, a refusal, or lost records.

All checks are linear in the length of the history, but for one sort.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from tests.harness.brokers.broker_machine import BrokerMachine, TopicKey, TopicsService
from topicsd.broker.read.reader import ROW_SECONDS, SharedRead, TopicRead, TopicRecords
from topicsd.catalog.shared.shared_catalog import TrimReason


class Removal:
    """A removal from the front of a topic: sent, and acknowledged or not."""

    __slots__ = ("acked_ns", "reason", "to_seq")

    def __init__(self, to_seq: int, reason: TrimReason) -> None:
        self.to_seq = to_seq
        """At most up to here."""
        self.reason = reason
        self.acked_ns = -1


Outcome = Literal["open", "acknowledged", "failed", "unknown"]
SLACK_NS: Final = 100_000_000
"""For requests between client and broker."""


class AppendRecord:
    """One append of a client, with all its tries."""

    __slots__ = ("acked_ns", "connection", "first_seq", "number", "outcome", "sent_ns", "topic", "values")

    def __init__(
        self, topic: TopicKey, connection: str, number: int, values: list[bytes], sent_ns: int
    ) -> None:
        self.topic = topic
        self.connection = connection
        self.number = number
        self.values = values
        self.sent_ns = sent_ns
        self.outcome: Outcome = "open"
        self.first_seq = 0
        self.acked_ns = 0


class BrokerBook:
    def __init__(self, topics: TopicsService) -> None:
        self._topics = topics
        self._appends: list[AppendRecord] = []
        self._values: dict[TopicKey, dict[int, bytes]] = {}
        self._seqs: dict[bytes, tuple[TopicKey, int]] = {}
        self.removals: dict[TopicKey, list[Removal]] = {}
        self.counts: Counter[str] = Counter()

    # -- what happens

    def send(
        self, topic: TopicKey, connection: str, number: int, values: list[bytes], now_ns: int
    ) -> AppendRecord:
        append = AppendRecord(topic, connection, number, values, now_ns)
        self._appends.append(append)
        return append

    def acknowledge(self, append: AppendRecord, first_seq: int, last_seq: int, now_ns: int) -> None:
        assert last_seq - first_seq + 1 == len(append.values), f"{append.topic}: {first_seq} to {last_seq}"
        assert append.outcome in ("open", "unknown") or append.first_seq == first_seq, (
            "two seqs for one append"
        )
        append.outcome, append.first_seq, append.acked_ns = "acknowledged", first_seq, now_ns
        for number, value in enumerate(append.values):
            self.note(append.topic, first_seq + number, value)

    def note(self, topic: TopicKey, seq: int, value: bytes) -> None:
        """Note that a record was seen (K1, K4)."""
        known = self._values.setdefault(topic, {}).setdefault(seq, value)
        assert known == value, f"{topic}: seq {seq} is {known!r} and {value!r} (K1)"
        place = self._seqs.setdefault(value, (topic, seq))
        assert place == (topic, seq), f"{value!r} is at {place} and at {(topic, seq)} (K4)"

    def check_answer(
        self, machine: BrokerMachine, run: int, read: TopicRead, answer: TopicRecords, sent_ns: int
    ) -> None:
        """Check the answer of one topic, at the moment at which the broker gives it."""
        topic = read.topic, answer.incarnation
        now_ns = machine.world.now_ns
        committed = self._topics.head_at(topic, now_ns)
        assert answer.head <= committed, f"{topic}: head {answer.head} above the committed {committed} (K7)"
        assert answer.next_seq - 1 <= max(committed, read.from_seq - 1), (
            f"{topic}: next seq {answer.next_seq}"
        )
        present = self._topics.present(read.topic)
        if run == machine.runs and present is not None and present.incarnation == answer.incarnation:
            before = machine.heads.get(topic, 0)
            assert answer.head >= before, (
                f"{topic}: {machine.name} answers head {answer.head} after {before} (K7)"
            )
            machine.heads[topic] = answer.head
        if answer.next_seq > answer.head and not answer.records and answer.refusal is None:
            # The age of what it knows, and the request for what is new.
            then = self._topics.head_at(topic, sent_ns - round(machine.read_limits.poll_seconds * 1e9))
            assert answer.next_seq > then, (
                f"{topic}: caught up at {answer.next_seq - 1}, the head was {then} (K7)"
            )
        self._check_gaps(topic, read, answer)
        for record in answer.records:
            self.note(topic, record.seq, record.data)
            assert record.seq <= committed
        self._check_removed(topic, answer, sent_ns)
        self.counts["records read"] += len(answer.records)

    def _check_gaps(self, topic: TopicKey, read: TopicRead, answer: TopicRecords) -> None:
        lost = {seq for one in answer.lost for seq in range(one.first_seq, one.last_seq + 1)}
        assert all(one.reason == "evicted" for one in answer.lost), f"{topic}: damage: {answer.lost}"
        deleted, evicted = (
            max((one.to_seq for one in self.removals.get(topic, []) if one.reason == reason), default=0)
            for reason in ("deleted", "evicted")
        )
        assert max(lost, default=0) <= evicted, f"{topic}: {answer.lost} was not removed (K6)"
        seq = read.from_seq
        for record in [*answer.records, None]:
            until = answer.next_seq if record is None else record.seq
            assert until >= seq, f"{topic}: seq {until} is not in order"
            missing = [one for one in range(seq, until) if one not in lost and one > deleted]
            assert not missing, f"{topic}: the read from {read.from_seq} passes over {missing} (K6)"
            seq = until + 1 if record is not None else until

    def _check_removed(self, topic: TopicKey, answer: TopicRecords, sent_ns: int) -> None:
        before_ns = sent_ns - round(ROW_SECONDS * 1e9) - SLACK_NS
        floors = [one.to_seq for one in self.removals.get(topic, []) if 0 <= one.acked_ns < before_ns]
        if floors and answer.records:
            first = answer.records[0].seq
            assert first > max(floors), f"{topic}: seq {first} was removed up to {max(floors)} (K8)"

    def check_wait(self, request: SharedRead, answers: list[TopicRecords], sent_ns: int, now_ns: int) -> None:
        """Check that a read with too little has waited for as long as it may (K10)."""
        size = sum(answer.byte_count for answer in answers)
        may_end = any(
            answer.refusal is not None or answer.lost or answer.next_seq <= answer.head for answer in answers
        )
        if size < min(request.min_bytes, request.bytes_max) and not may_end:
            waited = (now_ns - sent_ns) / 1e9
            assert waited >= request.wait_seconds - 1e-6, (
                f"{size} bytes of {request.min_bytes} after {waited} s of {request.wait_seconds} (K10)"
            )
            self.counts["full waits judged"] += 1

    def check_fence(self, topic: TopicKey, fenced_ns: int, opened_ns: int) -> None:
        """Check that the head did not grow while the topic was fenced (K9)."""
        before, after = (self._topics.head_at(topic, at_ns) for at_ns in (fenced_ns, opened_ns))
        assert before == after, f"{topic}: fenced, and the head grew from {before} to {after} (K9)"
        self.counts["fences judged"] += 1

    # -- the end

    def judge(self) -> None:
        """Check the whole history, after everything was read."""
        by_topic: dict[TopicKey, list[AppendRecord]] = {}
        for append in self._appends:
            by_topic.setdefault(append.topic, []).append(append)
            self.counts[f"append: {append.outcome}"] += 1
            for value in append.values:
                is_seen = value in self._seqs
                assert append.outcome != "failed" or not is_seen, f"{value!r} failed and was read (K5)"
        for topic, appends in by_topic.items():
            self._judge_order(topic, [one for one in appends if one.outcome == "acknowledged"])

    def _judge_order(self, topic: TopicKey, acked: list[AppendRecord]) -> None:
        by_ack = sorted(acked, key=lambda one: one.acked_ns)
        at = highest = 0
        for append in sorted(acked, key=lambda one: one.sent_ns):
            while at < len(by_ack) and by_ack[at].acked_ns < append.sent_ns:
                highest = max(highest, by_ack[at].first_seq + len(by_ack[at].values) - 1)
                at += 1
            assert append.first_seq > highest, (
                f"{topic}: an append sent at {append.sent_ns / 1e6} has seq {append.first_seq}, "
                f"and {highest} was acknowledged before (K3)"
            )
        last: dict[str, AppendRecord] = {}
        for append in sorted(acked, key=lambda one: (one.connection, one.number)):
            before = last.get(append.connection)
            assert before is None or before.first_seq < append.first_seq, (
                f"{topic}: {append.connection} sent number {append.number} after one with higher seqs (K3)"
            )
            last[append.connection] = append

    def judge_contents(self, topic: TopicKey, contents: dict[int, bytes], first_seq: int) -> None:
        """Check that what is left of a topic is what was acknowledged (K2)."""
        for append in self._appends:
            if append.topic == topic and append.outcome == "acknowledged":
                for number, value in enumerate(append.values):
                    seq = append.first_seq + number
                    if seq >= first_seq:
                        assert contents.get(seq) == value, (
                            f"{topic}: seq {seq} is {contents.get(seq)!r} instead of {value!r} (K2)"
                        )
                        self.counts["acknowledged records judged"] += 1


def values_of(connection: str, number: int, count: int) -> list[bytes]:
    return [b'"%s-%d-%d"' % (connection.encode(), number, one) for one in range(count)]
