"""One run of a cluster: workload, faults, moves of topics; then everything heals, and the book judges.

The seed decides the whole run. After the faults end, each topic must be served by the owner that the catalog
names, within SETTLE_MS, and everything must be exported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from tests.harness.books.ledger_entries import TopicContents
from tests.harness.cluster.answers import (
    Answer,
    Claimed,
    ClaimJobs,
    CursorAt,
    EndJobs,
    JobsEnded,
    ReadAll,
    ReadCursor,
    Request,
)
from tests.harness.cluster.histories.book import Book
from tests.harness.cluster.histories.clients import Client
from tests.harness.cluster.histories.directory import Directory
from tests.harness.cluster.histories.nemesis import Nemesis
from tests.harness.cluster.histories.plans import Plan, choose_plans
from tests.harness.cluster.histories.topic_mover import TopicMover
from tests.harness.cluster.machine import Cluster, Machine
from tests.harness.cluster.models.model_node import ModelNode
from tests.harness.cluster.virtual_time import World
from topicsd.catalog.catalog import TopicRow

RUN_MS: Final = 240_000
SETTLE_MS: Final = 600_000
QUIET_MS: Final = 120_000
"""Longer than a late request takes."""


class MakeNode(Protocol):
    """The class of the nodes."""

    supported: frozenset[type[Request]]

    def __call__(self, cluster: Cluster, name: str, book: Book, plans: Sequence[Plan]) -> Machine: ...


class Report(NamedTuple):
    """What a run did, for the sum over many."""

    steps: int
    requests: int
    counts: Counter[str]
    digest: str


class Episode:
    def __init__(
        self, seed: str, make_node: MakeNode = ModelNode, nodes: int = 3, topics: int = 4, losses_max: int = 1
    ) -> None:
        world = self.world = World(seed)
        self.cluster = Cluster(world)
        self.book = Book(self.cluster.catalog)
        self.plans = choose_plans(world.rng, topics, has_queues=ClaimJobs in make_node.supported)
        for plan in self.plans:
            self.book.jobs(plan.name).has_durable_leases = plan.has_durable_leases
        self.nodes = [make_node(self.cluster, f"n{number}", self.book, self.plans) for number in range(nodes)]
        for node in self.nodes:
            node.on_start = lambda: self.book.starts.append(world.now_ns)
        self.directory = Directory(world, self.nodes)
        self.nemesis = Nemesis(self.cluster, self.nodes, losses_max)
        takeover_share = world.rng.choice((0.0, 0.0, 0.2))
        self.mover = TopicMover(world, self.directory, self.cluster.catalog, takeover_share)
        self.clients = [
            Client(world, f"c{number}", self.directory, self.book, self.plans) for number in range(4)
        ]

    def run(self, ms: float = RUN_MS) -> Report:
        with self.world:
            try:
                self._run(ms)
            finally:
                for node in self.nodes:
                    if node.process is not None:
                        node.process.end()
        return self._report()

    def _run(self, ms: float) -> None:
        for node in self.nodes:
            node.start()
        for client in self.clients:
            client.start()
        self.nemesis.start()
        self.mover.start()
        self.world.run_for(ms)
        self.nemesis.end()
        self.mover.is_ending = True
        for client in self.clients:
            client.is_ending = True
        self.world.run_for(QUIET_MS)
        is_settled = self.world.run_until(self._is_settled, SETTLE_MS)
        unsettled = [
            (row.name, row.owner, row.owner_epoch, row.state)
            for row in self.cluster.catalog.rows()
            if not self._is_served(row)
        ]
        assert is_settled, (
            f"{SETTLE_MS / 1000:.0f} s after the faults, these are not served and exported: {unsettled}"
        )
        for plan in self.plans:
            row = self.cluster.catalog.row(plan.name)
            if row is not None and not self._is_gone(row):
                self._judge(plan)

    def _judge(self, plan: Plan) -> None:
        contents = self._ask(plan.name, ReadAll())
        assert isinstance(contents, TopicContents), f"{plan.name}: the owner answers {contents}"
        self.book.judge(plan.name, contents)
        for cursor in self.book.cursors.of(plan.name):
            position = self._ask(plan.name, ReadCursor(cursor))
            assert isinstance(position, CursorAt), position
            self.book.cursors.judge(plan.name, cursor, position.seq)
        if plan.is_queue:
            self._claim_all(plan, {seq for seq, _, _ in contents.records})

    def _claim_all(self, plan: Plan, live: set[int]) -> None:
        """Check that exactly the jobs that are left can be claimed, once the leases have ended."""
        self.world.run_for(2 * plan.lease_ms)
        claimed: list[int] = []
        while True:
            answer = self._ask(plan.name, ClaimJobs("judge", 50))
            assert isinstance(answer, Claimed), answer
            if not answer.jobs:
                break
            seqs, leases = [job.seq for job in answer.jobs], [job.lease for job in answer.jobs]
            claimed += seqs
            self.book.jobs(plan.name).send_end(seqs, is_done=True)
            ended = self._ask(plan.name, EndJobs("judge", seqs, leases, is_done=True))
            assert ended == JobsEnded(seqs), ended
        assert sorted(claimed) == sorted(live), (
            f"{plan.name}: the jobs {sorted(live)} are left, and {sorted(claimed)} can be claimed (J8)"
        )

    def _ask(self, name: str, request: Request) -> Answer:
        """Ask the owner, at the end."""
        row = self.cluster.catalog.row(name)
        assert row is not None
        answers: list[Answer] = []
        self.directory.nodes[row.owner].request(name, request, answers.append)
        assert self.world.run_until(lambda: bool(answers), SETTLE_MS), f"{name}: no answer to {request}"
        return answers[0]

    def _is_settled(self) -> bool:
        """Whether each topic is served by its owner, which has exported it whole."""
        if any(client.is_busy for client in self.clients):
            return False
        return all(
            self.cluster.catalog.row(name) is not None
            or not self.book.topic(name).acked
            or self.directory.nodes[self.directory.home_of(name)].is_lost
            for name in self.book.topics
        ) and all(self._is_served(row) for row in self.cluster.catalog.rows())

    def _is_served(self, row: TopicRow) -> bool:
        """Return whether the owner serves the topic and has exported it, or nothing is left of it."""
        is_served = row.state == "owned" and self.directory.nodes[row.owner].is_exported(row.name)
        return is_served or self._is_gone(row)

    def _is_gone(self, row: TopicRow) -> bool:
        """Return whether the topic was lost with its node before its first export: nothing of it is left."""
        return not row.exported_to and self.directory.nodes[row.owner].is_lost

    def _report(self) -> Report:
        counts: Counter[str] = Counter()
        network = self.cluster.network
        counts.update({f"request: {fault}": count for fault, count in network.faults.items()})
        counts.update({f"end before {label}": count for label, count in network.crashes.items()})
        counts.update({f"fault: {fault}": count for fault, count in self.nemesis.done.items()})
        counts.update({f"move: {done}": count for done, count in self.mover.done.items()})
        for client in self.clients:
            counts.update({f"client: {outcome}": count for outcome, count in client.outcomes.items()})
        counts["acknowledged and lost with a node"] = self.book.lost_count
        counts["acknowledged records judged"] = self.book.acked_count
        counts["extents merged"] = self.cluster.catalog.merged
        counts["objects deleted"] = self.cluster.store.deleted
        return Report(self.world.steps, network.requests, counts, self.world.digest)
