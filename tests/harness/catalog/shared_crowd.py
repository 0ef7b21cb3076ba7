"""Several brokers, compactors and vacuums that use one catalog for shared topics at random, beside an oracle.

A lost request changes nothing. After a lost answer the change is made, and its process repeats the verb: at
once, later, or never. So commits of blobs arrive twice, late, after a fence, and after the blob was
condemned. Every call must give what the oracle gives, and topics, extents, heads and nodes must agree after
each step.

Beside the oracle, the answers alone must keep C1, C2, C5 and C6: `SeqBook` checks them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from tests.harness.catalog.shared_oracle import SharedOracle
from tests.harness.machine.manual_clock import ManualClock
from topicsd.catalog.shared.shared_catalog import (
    REPEATED_MS,
    BrokerNode,
    Claim,
    ClaimLost,
    Compaction,
    CompactionRefused,
    ConfigChanged,
    Part,
    PartResult,
    Producer,
    SharedCatalog,
    SharedExtent,
    SharedTopic,
    Slice,
    TopicExists,
)

TOPICS: Final = ("orders", "orders:1", "orders:0", "orders.eu", "z")
PREFIXES: Final = ("", "orders", "orders:", "y")
LOSS: Final = 0.12
PRODUCERS_MAX: Final = 3
RETRIED: Final = "repeated"

Call = Callable[[SharedCatalog | SharedOracle], Any]
Outcome = tuple[str, Any]


class SeqBook:
    """The seqs that commits answered, by topic and incarnation."""

    def __init__(self) -> None:
        self.ranges: dict[SharedTopic, dict[int, tuple[int, str]]] = {}
        """By first seq: the last seq and the append id."""

    def note(
        self, topics: dict[str, SharedTopic], slices: Sequence[Slice], results: list[list[PartResult]]
    ) -> None:
        """Note the answers of a commit to these topics."""
        for one, answers in zip(slices, results, strict=True):
            ranges = self.ranges.setdefault(topics[one.topic], {}) if one.topic in topics else {}
            for part, answer in zip(one.parts, answers, strict=True):
                if answer.first_seq:
                    before = ranges.setdefault(answer.first_seq, (answer.last_seq, part.append_id))
                    # A repetition by the numbers of a producer has an append id of its own.
                    assert before[0] == answer.last_seq, (before, part)
                    assert before[1] == part.append_id or part.producer is not None, (before, part)
                if answer.status == "committed":
                    assert answer.last_seq - answer.first_seq + 1 == part.count

    def check(self) -> None:
        """Check that no seq was given twice; answers that were lost leave gaps in the book."""
        for topic, ranges in self.ranges.items():
            end = 0
            for first in sorted(ranges):
                assert first > end, (topic, first, end)
                end = ranges[first][0]


class SharedCrowd:
    def __init__(self, catalogs: Sequence[SharedCatalog], seed: int, clock: ManualClock) -> None:
        self.random = Random(seed)
        self._again = Random(seed)
        self.clock = clock
        self.oracle = SharedOracle(clock.now_ms, PRODUCERS_MAX)
        self.catalogs = catalogs
        self.unanswered: list[tuple[int, Call]] = []
        self.blobs: list[tuple[str, list[Slice]]] = []
        """What was to be committed, in order; each may arrive again."""
        self.condemned: list[str] = []
        self.claims: list[Claim] = []
        self.book: SeqBook | None = SeqBook()
        self.outcomes: Counter[str] = Counter()
        self.statuses: Counter[str] = Counter()
        self.numbers: Counter[tuple[str, str]] = Counter()
        self.count = 0
        self.slices_max = self.parts_max = 3
        self.trimmed_ahead = 1
        """How far after the head a trim may begin."""
        self.has_server_leases = False
        """Whether leases end by another clock than `clock`: then no verb depends on one."""
        self.is_retrying = False
        """Whether a catalog repeats requests itself: a commit may then be `repeated` at once."""

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        if self.book is not None:
            self.book.check()

    def step(self) -> None:
        self.clock.advance(1)
        node, name = self.random.randrange(len(self.catalogs)), self.random.choice(TOPICS)
        if self.unanswered and self.random.random() < 0.3:
            node, call = self.unanswered.pop(self.random.randrange(len(self.unanswered)))
            self.request(node, call)
        else:
            self.random.choices(*self.actions())[0](node, name)
        self.check(name)

    def actions(self) -> tuple[list[Callable[[int, str], None]], list[float]]:
        weights: dict[Callable[[int, str], None], float] = {
            self.commit: 30,
            self.commit_again: 8,
            self.create: 8,
            self.configure: 2,
            self.fence: 4,
            self.forget: 0.7,
            self.trim: 4,
            self.claim: 6,
            self.compact: 12,
            self.finish: 5,
            self.condemn: 5,
            self.beat: 2,
            self.read: 4,
            self.wait: 3,
        }
        if self.has_server_leases:
            for action in (self.claim, self.compact, self.beat):
                del weights[action]
        return list(weights), list(weights.values())

    # -- one verb, its request or its answer lost at random

    def request(self, node: int, call: Call) -> Outcome | None:
        chance = self.random.random()
        if chance < LOSS:
            self.outcomes["lost request"] += 1
            self.unanswered.append((node, call))
            return None
        expected, result = outcome(call, self.oracle), outcome(call, self.catalogs[node])
        assert self.is_same(result, expected), (result, expected)
        self.outcomes[result[0]] += 1
        if chance < 2 * LOSS:
            self.outcomes["lost answer"] += 1
            self.unanswered.append((node, call))
            return None
        return result

    def is_same(self, result: Outcome, expected: Outcome) -> bool:
        return result == expected or (
            self.is_retrying and without_retries(result) == without_retries(expected)
        )

    def check(self, name: str) -> None:
        catalog = self.random.choice(self.catalogs)
        topics = catalog.topics([name]), self.oracle.topics([name])
        assert topics[0] == topics[1], topics
        extents = catalog.extents_from(name, 0, 256), self.oracle.extents_from(name, 0, 256)
        assert extents[0] == extents[1], extents
        topic = self.oracle.by_name.get(name)
        incarnations = [(name, -1 if topic is None else topic.incarnation), (name, 1)]
        assert catalog.heads(incarnations) == self.oracle.heads(incarnations)
        if topic is not None:
            seqs = sorted(topic.extent_of)
            assert seqs == [*range(topic.head + 1 - len(seqs), topic.head + 1)]
            assert len(seqs) >= topic.head + 1 - topic.row().first_seq

    # -- what a broker does

    def new(self, kind: str) -> str:
        self.count += 1
        return f"{kind}-{self.count}"

    def created(self) -> dict[str, SharedTopic]:
        """Return the topics by name, each as it was when it was created."""
        return {
            name: SharedTopic(name, topic.incarnation, "OPEN", 0, 0, 0, 0, topic.created_ms, b"", 0)
            for name, topic in self.oracle.by_name.items()
        }

    def known_incarnation(self, name: str) -> int:
        topic = self.oracle.by_name.get(name)
        return topic.incarnation if topic is not None and self.random.random() < 0.95 else -1

    def commit(self, node: int, name: str) -> None:
        others = self.random.sample([one for one in TOPICS if one != name], self.random.randrange(3))
        slices, offset = [], 50
        for one in [name, *others][: self.slices_max]:
            parts = tuple(self.part(one) for _ in range(self.random.randrange(1, self.parts_max + 1)))
            slices.append(Slice(one, self.known_incarnation(one), offset, parts))
            offset += sum(part.byte_length for part in parts)
        # The vacuum condemned the blob of a slow broker.
        is_late = bool(self.condemned) and self.random.random() < 0.05
        self.send_blob(node, self.condemned.pop() if is_late else self.new("blob"), slices)

    def part(self, name: str) -> Part:
        append_id, digest = self.new("append"), ""
        recent = [one for _, slices in self.blobs[-20:] for one in slices if one.topic == name]
        if recent and self.random.random() < 0.15:
            # A client repeats its request, with an idempotency key, at another broker.
            one = self.random.choice(self.random.choice(recent).parts)
            return replace(one, digest="other") if self.random.random() < 0.4 else one
        producer = None
        if self.random.random() < 0.3:
            producer_name = self.random.choice(("p", "q", "r/é", "s"))
            number = self.numbers[name, producer_name] + self.random.choice((1, 1, 1, 0, -1, 2))
            number = max(1, number)
            last = number + self.random.choice((0, 0, 2))
            self.numbers[name, producer_name] = last
            producer = Producer(producer_name, number, last)
        return Part(append_id, self.random.randrange(1, 5), self.random.randrange(1, 100), producer, digest)

    def send_blob(self, node: int, key: str, slices: list[Slice]) -> None:
        self.blobs.append((key, slices))

        def call(to: SharedCatalog | SharedOracle) -> list[list[PartResult]]:
            return to.commit(key, "frames-v1", slices)

        result = self.request(node, call)
        if result is not None:
            if self.book is not None:
                self.book.note(self.created(), slices, result[1])
            self.statuses.update(one.status for answers in result[1] for one in answers)

    def commit_again(self, node: int, name: str) -> None:
        """A commit arrives late, or its parts are put into another blob."""
        if self.blobs:
            key, slices = self.random.choice(self.blobs[-30:])
            self.send_blob(node, key if self.random.random() < 0.6 else self.new("blob"), slices)

    # -- what operators do

    def create(self, node: int, name: str) -> None:
        self.count += 1
        incarnation, config = self.count, b'{"n":%d}' % self.count
        self.request(node, lambda to: to.create(name, incarnation, config))

    def configure(self, node: int, name: str) -> None:
        topic = self.oracle.by_name.get(name)
        version = topic.config_version + self.random.choice((0, 0, -1)) if topic is not None else 1
        incarnation, config = self.known_incarnation(name), self.new("config").encode()
        self.request(node, lambda to: to.configure(name, incarnation, b'"%b"' % config, version))

    def fence(self, node: int, name: str) -> None:
        incarnation, is_fence = self.known_incarnation(name), self.random.random() < 0.4
        self.request(node, lambda to: to.fence(name, incarnation, "FENCED" if is_fence else "OPEN"))

    def forget(self, node: int, name: str) -> None:
        incarnation = self.known_incarnation(name)
        self.request(node, lambda to: to.forget(name, incarnation))

    def wait(self, node: int, name: str) -> None:
        self.clock.advance(self.random.choice((1, 1000, REPEATED_MS // 3)))

    # -- retention, compaction, vacuum

    def trim(self, node: int, name: str) -> None:
        topic, incarnation = self.oracle.by_name.get(name), self.known_incarnation(name)
        if topic is not None:
            to_seq = self.random.randrange(topic.compacted_to // 2, topic.head + 1 + self.trimmed_ahead)
            is_delete = self.random.random() < 0.5
            self.request(
                node, lambda to: to.trim(name, incarnation, to_seq, "deleted" if is_delete else "evicted")
            )

    def claim(self, node: int, name: str) -> None:
        compactor, lease_ms = f"compactor-{node}", self.random.choice((2000, REPEATED_MS))
        # Where requests are late, a claim that was released may come back until its lease ends.
        if self.claims and self.random.random() < 0.2 and not self.is_retrying:
            claim = self.claims.pop(self.random.randrange(len(self.claims)))
            self.request(node, lambda to: to.release(claim))
            return
        result = self.request(node, lambda to: to.claim(name, compactor, lease_ms))
        if result is not None and result[1] is not None:
            self.claims.append(result[1])

    def compact(self, node: int, name: str) -> None:
        topic = self.oracle.by_name.get(name)
        if topic is None:
            return
        claim = self.claims[-1] if self.claims and self.random.random() < 0.2 else None
        if claim is None or claim.topic != name:
            claim = Claim(name, f"compactor-{node}", 0, 0)
            result = self.request(node, lambda to: to.claim(name, claim.compactor, REPEATED_MS))
            if result is None and (self.is_retrying or self.random.random() < 0.5):
                return
        self.begin(node, claim, self.compaction(name, topic.incarnation, self.known_extents(name)))

    def begin(self, node: int, claim: Claim, compaction: Compaction) -> None:
        self.request(node, lambda to: to.begin_compaction(claim, compaction))

    def known_extents(self, name: str) -> list[SharedExtent]:
        """Return the extents after the compacted ones, or some that may be merged again."""
        topic = self.oracle.by_name.get(name)
        if topic is None:
            return []
        if self._again.random() < 0.3:
            compacted = [one for one in topic.extents() if one.last_seq <= topic.compacted_to]
            return compacted[self._again.randrange(len(compacted) + 1) :]
        return [one for one in topic.extents() if one.last_seq > topic.compacted_to]

    def compaction(self, name: str, incarnation: int, extents: list[SharedExtent]) -> Compaction:
        """Return a compaction of the next extents, or sometimes of a range that must be refused."""
        old = [one for one in extents if self.clock.now_ms() - one.created_ms >= REPEATED_MS]
        chosen = old if self.random.random() < 0.9 else extents
        chosen = chosen[: self.random.randrange(1, 6)]
        first, last = (chosen[0].first_seq, chosen[-1].last_seq) if chosen else (1, 3)
        if self.random.random() < 0.1:
            first, last = first + self.random.choice((0, 1, -1)), last + self.random.choice((0, 1, -1))
        key = self.new("compacted")
        last_ms = chosen[-1].created_ms if chosen else self.clock.now_ms()
        extent = SharedExtent(first, max(first, last), "COMPACTED", key, "segment", 0, 1000 + last, last_ms)
        return Compaction(f"id-{key}", name, incarnation, extent)

    def finish(self, node: int, name: str) -> None:
        self.request(node, lambda to: to.finish_compaction(name))

    def condemn(self, node: int, name: str) -> None:
        keys = [key for key, _ in self.random.sample(self.blobs, min(3, len(self.blobs)))]
        self.condemned.append(self.new("blob"))
        keys += [self.condemned[-1], *(one.key for one in self.oracle.extents_from(name, 0, 3))]
        for some in [keys] if self.slices_max > 1 else [[key] for key in keys]:
            self.request(node, partial(_condemn, some))

    # -- membership and lists

    def beat(self, node: int, name: str) -> None:
        alive = BrokerNode(
            f"node-{node}", "http://h:1", 1.0 + node, ("read", "write"), 5, b'{"n":%d}' % self.count
        )
        if self.random.random() < 0.2:
            self.request(node, lambda to: to.leave(alive.name))
        else:
            self.request(node, lambda to: to.heartbeat(alive, 30_000))
        assert self.catalogs[node].nodes() == self.oracle.nodes()

    def read(self, node: int, name: str) -> None:
        seq, limit = self.random.randrange(60), self.random.randrange(1, 5)
        self.request(node, lambda to: to.extents_from(name, seq, limit))
        prefix, after = self.random.choice(PREFIXES), self.random.choice(("", *TOPICS))
        self.request(node, lambda to: to.list(prefix, after, limit))
        heads = [*((one, self.known_incarnation(one)) for one in TOPICS), ("missing", 1)]
        self.request(node, lambda to: to.heads(heads))
        self.request(node, lambda to: to.topics([*TOPICS, "missing"]))


def outcome(call: Call, catalog: SharedCatalog | SharedOracle) -> Outcome:
    """Make a call; return its kind and its result."""
    try:
        return "done", call(catalog)
    except (TopicExists, ConfigChanged, ClaimLost, CompactionRefused) as error:
        return type(error).__name__, None


def _condemn(keys: list[str], to: SharedCatalog | SharedOracle) -> set[str]:
    return to.condemn(keys)


def without_retries(result: Outcome) -> Outcome:
    """Return an outcome in which a committed part and a repeated one are the same.

    A claim may outlast its topic, so a compaction of a forgotten topic is refused for either reason.
    """
    kind, value = result
    if kind == "ClaimLost":
        kind = "CompactionRefused"
    if kind == "done" and isinstance(value, list) and value and isinstance(value[0], list):
        value = [
            [replace(one, status=RETRIED) if one.status == "committed" else one for one in answers]
            for answers in value
        ]
    return kind, value
