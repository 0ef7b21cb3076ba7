"""Brokers with homes: requests between them are lost, late, answered in vain, or reach a stopped home.

Promises: a request reaches the process that runs when it arrives; a stopped one gets it when it continues.
Each broker sees some of the nodes, and others at another time, so a topic may have several homes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from shared.runtime.retries import Retries
from tests.harness.brokers.broker_clients import Administrator
from tests.harness.brokers.broker_episode import BrokerEpisode, BrokerNemesis
from tests.harness.brokers.broker_machine import (
    BrokerMachine,
    MakeBroker,
    MakeVacuum,
    TopicsClient,
)
from tests.harness.catalog.fake_key_value import FakeKeyValue, SharedKeys
from tests.harness.cluster.histories.episode import Report
from tests.harness.cluster.node_threads import NodeClock
from tests.harness.cluster.virtual_time import Process
from tests.harness.machine.manual_clock import ManualClock
from topicsd.broker.home.home import TAKE_SECONDS, Home
from topicsd.broker.home.homes import HomeAway, Homes
from topicsd.broker.steps import Resume, Wait
from topicsd.catalog.shared.key_shared import KeyValueSharedCatalog
from topicsd.catalog.shared.shared_catalog import BrokerNode, PartResult, SharedCatalog, Slice

SECRET: Final = b"the secret of the cluster"
HOP_MS: Final = 5.0
SLOW_MS: Final = 4_000.0
LATE_SECONDS: Final = 8.0
FENCE_EACH_MS: Final = 2_000.0


class _CatalogTime(ManualClock):
    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self.now_ms = now_ms  # type: ignore[method-assign]


def open_keys_in_memory(now_ms: Callable[[], int]) -> SharedCatalog:
    """Open a key-value catalog in memory; each verb is one moment."""
    store = FakeKeyValue(SharedKeys(_CatalogTime(now_ms)), Random(0))
    retries = Retries(lambda: now_ms() / 1000, lambda seconds: True, 1.0)
    return KeyValueSharedCatalog(store, retries, now_ms, threads=1)


class HomeMachine(BrokerMachine):
    machines: Sequence[HomeMachine]
    loss = 0.0
    """The share of the requests to homes that are lost, have no answer, or are slow."""
    homes: Homes | None = None

    def boot(self, process: Process) -> None:
        super().boot(process)
        broker = self.broker
        assert broker is not None
        clock, catalog = (
            NodeClock(process, self.skew_ms),
            TopicsClient(self.broker_cluster, process, self.name),
        )

        def commit(
            key: str, encoding: str, slices: Sequence[Slice], is_in_time: Callable[[], bool]
        ) -> list[list[PartResult]]:
            # The request is on its way, whatever the time is: as late as any other one, or later.
            if self.world.rng.random() < self.loss:
                process.sleep(self.world.rng.random() * LATE_SECONDS)
            results: list[list[PartResult]] = catalog.commit(key, encoding, slices)
            return results

        self.note_totals()
        home = Home(clock, broker.committer.commits, commit, SECRET)
        nodes, ask = partial(self._nodes, process), partial(self._ask, process)
        self.homes = Homes(clock, broker.lookups, nodes, self.name, home, SECRET, ask)
        broker.committer.homes = self.homes

    def note_totals(self) -> None:
        """Add the numbers of the process that ran before."""
        if self.homes is not None:
            self.reports["homes: sent"] += self.homes.totals.sent
            self.reports["homes: passed over"] += self.homes.totals.passed_over
            self.reports["homes: taken"] += self.homes.home.taken_count
            self.reports["homes: refused"] += self.homes.home.refused_count
            self.homes = None

    def _nodes(self, process: Process) -> list[BrokerNode]:
        """Return the nodes that this broker sees now."""

        def look() -> list[BrokerNode]:
            rng = self.world.rng
            names = [one.name for one in self.machines]
            if rng.random() < 0.3:
                names = sorted(rng.sample(names, rng.randint(1, len(names))))
            return [BrokerNode(name, name, 1.0, ("write",), 0) for name in names]

        network, service = self.cluster.network, self.broker_cluster.catalog.service
        return network.request(process, self.name, service, "nodes", look)

    def _ask(self, process: Process, address: str, body: bytes) -> Wait:
        world, rng = self.world, self.world.rng
        is_faulty = rng.random() < self.loss
        fate = rng.choice(("lost request", "lost answer", "slow")) if is_faulty else "done"
        self.reports[f"homes: {fate}"] += 1
        ms = rng.random() * (SLOW_MS if fate == "slow" else HOP_MS)
        target = next(one for one in self.machines if one.name == address)

        def start(resume: Resume) -> None:
            is_over: list[None] = []

            def answer(outcome: Any) -> None:
                if not is_over:
                    is_over.append(None)
                    resume(outcome)

            def on_reply(outcome: bytes | None) -> None:
                assert outcome is not None
                if fate != "lost answer":
                    world.after(rng.random() * HOP_MS, answer, outcome, process=process)

            def arrive(homes: Homes) -> None:
                homes.home.take(body, on_reply)

            def travel() -> None:
                if target.process is None or target.homes is None:
                    world.after(rng.random(), answer, HomeAway(), process=process)
                else:
                    world.after(0, arrive, target.homes, process=target.process)

            world.after(TAKE_SECONDS * 1000, answer, TimeoutError(), process=process)
            if fate != "lost request":
                world.after(ms, travel)

        return start


class _Fencer(Administrator):
    """Fences and opens topics all the time."""

    def act(self) -> None:
        topic = self.topic()
        if topic is not None:
            self._fence(self.machine(), (topic.name, topic.incarnation))


class _HomeNemesis(BrokerNemesis):
    """Links between brokers lose requests until the faults end."""

    def end(self) -> None:
        super().end()
        for machine in self._machines:
            assert isinstance(machine, HomeMachine)
            machine.loss = 0.0


class HomeEpisode(BrokerEpisode):
    machines: list[HomeMachine]  # type: ignore[assignment]

    def __init__(self, seed: str, **options: Any) -> None:
        super().__init__(seed, **options)
        loss = self.world.rng.choice((0.0, 0.1, 0.5))
        for machine in self.machines:
            machine.machines, machine.loss = self.machines, loss
        if not self.is_long:
            shared = self.cluster, self.machines, self.book
            fencer = _Fencer(*shared, "f", FENCE_EACH_MS, 0)
            fencer.opened_ns = self.administrator.opened_ns
            self.clients.append(fencer)

    def make_machine(
        self, name: str, make_broker: MakeBroker, make_vacuum: MakeVacuum, poll_seconds: float
    ) -> HomeMachine:
        return HomeMachine(self.cluster, name, make_broker, make_vacuum, poll_seconds)

    def make_nemesis(self, slower: int) -> _HomeNemesis:
        return _HomeNemesis(self.cluster, self.machines, 1, slower)

    def report(self) -> Report:
        for machine in self.machines:
            machine.note_totals()
        return super().report()
