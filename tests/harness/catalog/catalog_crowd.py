"""Several nodes that use one catalog at random, beside an oracle; any request or answer may be lost.

A lost request changes nothing. After a lost answer the change is made, and its node repeats the verb: at
once, later, or never. So the catalog sees repeated calls after changes of other nodes. Every call must give
what the oracle gives, and all rows and extents must agree after each step.

The nodes give out seqs up to the ceilings that they were granted, also after they lost a topic that they
still believe to own. No seq may be given twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from tests.harness.catalog.catalog_oracle import CatalogOracle
from topicsd.catalog.catalog import (
    Catalog,
    ChangeRefused,
    Extent,
    ExtentObject,
    Fenced,
    Lookup,
    Ownership,
    TopicRow,
)

TOPICS: Final = ("orders", "orders:1", "orders.eu", "z")
LOSS: Final = 0.15

Call = Callable[[Catalog], Any]
Outcome = tuple[str, Any]


class BelievedTopic:
    """What a node believes of a topic that it owned when it last had an answer."""

    def __init__(self, row: TopicRow, seq: int) -> None:
        self.row = row
        self.seq = seq
        """The last seq that the node gave out, or the one that it resumes above."""


class CatalogCrowd:
    def __init__(self, catalogs: Sequence[Catalog], seed: int) -> None:
        self.random = Random(seed)
        self.oracle = CatalogOracle()
        self.catalogs = catalogs
        self.believed: list[dict[str, BelievedTopic]] = [{} for _ in catalogs]
        self.unanswered: list[tuple[int, str, Call]] = []
        self.seals: dict[tuple[int, str], Call] = {}
        """The seals without an answer, by node and topic (K5)."""
        self.given: Counter[tuple[str, int, int]] = Counter()
        """How often each seq was given out, by topic, incarnation and seq."""
        self.outcomes: Counter[str] = Counter()
        self.incarnations = self.objects = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        assert max(self.given.values(), default=0) <= 1, "a seq was given twice"

    def step(self) -> None:
        node = self.random.randrange(len(self.catalogs))
        name = self.random.choice(TOPICS)
        believed = [(node, name) for node, topics in enumerate(self.believed) for name in topics]
        if believed and self.random.random() < 0.7:
            node, name = self.random.choice(believed)
        if self.unanswered and self.random.random() < 0.4:
            node, name, call = self.unanswered.pop(self.random.randrange(len(self.unanswered)))
            self.request(node, name, call)
        else:
            action = self.random.choices(
                (self.create, self.give_seqs, self.raise_ceiling, self.append, self.merge, self.trim,
                 self.seal, self.adopt, self.forget, self.read, self.publish_nonsense, self.restart),
                (4, 20, 20, 20, 12, 3, 4, 4, 0.3, 4, 6, 8),
            )[0]  # fmt: skip
            action(node, name)
        self.check(name)

    # -- one verb, its request or its answer lost at random

    def request(self, node: int, name: str, call: Call) -> Outcome | None:
        chance = self.random.random()
        if chance < LOSS:
            self.outcomes["lost request"] += 1
            self.unanswered.append((node, name, call))
            return None
        expected, result = outcome(call, self.oracle), outcome(call, self.catalogs[node])
        assert result == expected, (result, expected)
        self.outcomes[result[0]] += 1
        if chance < 2 * LOSS:
            self.outcomes["lost answer"] += 1
            self.unanswered.append((node, name, call))
            return None
        if self.seals.get((node, name)) is call:
            del self.seals[node, name]
        self.learn(node, name, result)
        return result

    def learn(self, node: int, name: str, result: Outcome) -> None:
        kind, row = result
        if isinstance(row, Lookup):
            row = row.row if row.is_owner else None
        believed = self.believed[node]
        if kind == "fenced":
            believed.pop(name, None)
        elif kind == "done" and isinstance(row, TopicRow):
            if row.owner != _node(node) or row.state == "sealed" or (node, name) in self.seals:
                believed.pop(name, None)
            elif name in believed and believed[name].row.ownership == row.ownership:
                believed[name].row = row
            else:
                # A new ownership resumes above the ceiling: also after a lost answer and a restart.
                believed[name] = BelievedTopic(row, row.ceiling)

    def check(self, name: str) -> None:
        catalog = self.random.choice(self.catalogs)
        row = self.oracle.row(name)
        assert catalog.own(name, Ownership("other", 0, 0)) == (row, False)
        assert catalog.extents_from(name, 0, 256) == self.oracle.extents(name)
        if row is not None:
            assert row.exported_to <= row.ceiling
            assert row.state == "owned" or row.exported_to == row.ceiling

    # -- what a node does

    def known_row(self, name: str) -> TopicRow | None:
        return self.oracle.row(name)

    def known_extents(self, name: str) -> list[Extent]:
        return self.oracle.extents(name)

    def create(self, node: int, name: str) -> None:
        self.incarnations += 1
        incarnation, ceiling = self.incarnations, self.random.randrange(20)
        topic_id = (1 << 64) - incarnation
        self.request(node, name, lambda to: to.create(name, topic_id, incarnation, _node(node), ceiling))

    def give_seqs(self, node: int, name: str) -> None:
        topic = self.believed[node].get(name)
        if topic is not None:
            end = min(topic.row.ceiling, topic.seq + self.random.randrange(1, 8))
            for seq in range(topic.seq + 1, end + 1):
                self.given[name, topic.row.incarnation, seq] += 1
            topic.seq = max(topic.seq, end)

    def raise_ceiling(self, node: int, name: str) -> None:
        topic = self.believed[node].get(name)
        if topic is not None:
            ownership, ceiling = topic.row.ownership, topic.seq + self.random.randrange(20)
            self.request(node, name, lambda to: to.raise_ceiling(name, ownership, ceiling))

    def append(self, node: int, name: str) -> None:
        """Export what was given out, in one or more extents; the first extents may begin later."""
        topic = self.believed[node].get(name)
        if topic is None:
            return
        first = topic.row.exported_to + 1
        if not topic.row.has_extents:
            first += self.random.randrange(3)
        add: list[Extent] = []
        while first <= topic.seq and len(add) < 4:
            last = min(topic.seq, first + self.random.randrange(6))
            add.append(self.extent(topic.row, first, last))
            first = last + 1
        extents = self.known_extents(name)
        ends_before = bool(extents) and bool(add) and extents[-1].last_seq + 1 == add[0].first_seq
        if ends_before and self.random.random() < 0.5:
            # As an export does: the last extent is replaced in the same change.
            last_one = extents[-1]
            again = self.extent(topic.row, last_one.first_seq, last_one.last_seq, 1)
            self.publish(node, name, topic.row.ownership, [again, *add], [last_one])
        elif add:
            self.publish(node, name, topic.row.ownership, add, [])

    def merge(self, node: int, name: str) -> None:
        topic, extents = self.believed[node].get(name), self.known_extents(name)
        if topic is not None and extents:
            start = self.random.randrange(len(extents))
            remove = extents[start : start + self.random.randrange(1, 5)]
            first, last = remove[0].first_seq, remove[-1].last_seq
            # Mostly one; after a crash also others of the same range.
            ends = {last, *(self.random.randint(first, last) for _ in range(self.random.choice((0, 0, 3))))}
            merged = []
            for end in sorted(ends):
                merged.append(self.extent(topic.row, first, end, 1))
                first = end + 1
            self.publish(node, name, topic.row.ownership, merged, remove)

    def trim(self, node: int, name: str) -> None:
        topic, extents = self.believed[node].get(name), self.known_extents(name)
        if topic is not None and extents:
            # All of them, or some of the first; and some in the middle, which must be refused.
            start = self.random.choice((0, 0, 0, self.random.randrange(len(extents))))
            remove = extents[start : start + self.random.choice((1, 3, len(extents)))]
            self.publish(node, name, topic.row.ownership, [], remove)

    def publish_nonsense(self, node: int, name: str) -> None:
        """Publish an extent of a random range, in place of any extent or of none."""
        topic, extents = self.believed[node].get(name), self.known_extents(name)
        if topic is not None:
            first = max(1, topic.row.exported_to + self.random.randrange(-8, 3))
            add = [self.extent(topic.row, first, first + self.random.randrange(20))]
            remove = self.random.sample(extents, self.random.randrange(min(2, len(extents) + 1)))
            self.publish(node, name, topic.row.ownership, add, remove)

    def publish(
        self, node: int, name: str, ownership: Ownership, add: list[Extent], remove: list[Extent]
    ) -> None:
        self.request(node, name, lambda to: to.publish_extents(name, ownership, add, remove))

    def extent(self, row: TopicRow, first: int, last: int, generation: int = 0) -> Extent:
        self.objects += 1
        objects = tuple(ExtentObject(f"{self.objects}.{kind}", last, "c") for kind in ("data", "idx"))
        return Extent(first, last, objects, 1000 + first, 1000 + last, row.owner_epoch, generation)

    def seal(self, node: int, name: str) -> None:
        topic = self.believed[node].get(name)
        if topic is not None:
            self.objects += 1
            # The node stops first. A seal that is refused leaves the rest to be exported.
            ownership, last, key = topic.row.ownership, topic.seq, f"{self.objects}.entry"
            self.believed[node].pop(name)

            def call(to: Catalog) -> TopicRow:
                return to.seal(name, ownership, last, key)

            self.seals[node, name] = call
            result = self.request(node, name, call)
            if result is not None and result[0] == "refused":
                self.believed[node][name] = topic

    def adopt(self, node: int, name: str) -> None:
        row = self.known_row(name)
        if row is not None:
            epoch = row.owner_epoch - self.random.choice((0, 0, 0, 1))
            loss = self.random.random() < 0.2
            incarnation = row.incarnation
            # The adopter has stopped to give out seqs of an ownership that it had before.
            self.believed[node].pop(name, None)
            self.request(node, name, lambda to: to.adopt(name, _node(node), incarnation, epoch, loss))

    def restart(self, node: int, name: str) -> None:
        """Start again without knowing what was given out, as after a power cut."""
        row = self.known_row(name)
        if row is not None and row.owner == _node(node):
            ownership = row.ownership
            self.believed[node].pop(name, None)
            self.request(node, name, lambda to: to.own(name, ownership))

    def forget(self, node: int, name: str) -> None:
        row = self.known_row(name)
        if row is not None:
            ownership = row.ownership._replace(node=_node(node))
            self.request(node, name, lambda to: to.forget(name, ownership))

    def read(self, node: int, name: str) -> None:
        seq, limit = self.random.randrange(60), self.random.randrange(1, 5)
        self.request(node, name, lambda to: to.extents_from(name, seq, limit))
        prefix, after = self.random.choice(("", "orders", "orders:", "y")), self.random.choice(("", *TOPICS))
        self.request(node, name, lambda to: to.list(prefix, after, limit))


def outcome(call: Call, catalog: Catalog) -> Outcome:
    """Make a call; return its kind and its result, or the row of the error."""
    try:
        return "done", call(catalog)
    except Fenced as error:
        return "fenced", error.row
    except ChangeRefused:
        return "refused", None


def _node(number: int) -> str:
    return f"node-{number}"
