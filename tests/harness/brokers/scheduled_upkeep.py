"""Histories with schedulers of upkeep in the processes of the brokers, and what they must do.

W1  A process makes one call at a time for a topic, and as many at once as it has workers (U1).
W2  Over a catalog without a clock, a process whose clock is wrong visits nothing (U6).
W3  A scheduler that is stopped in a visit leaves no claim (U5).
W4  Some time after the faults, all records that may be merged are merged, those of new topics as well, and
    all orphans are vacuumed, whatever failed before (U1 to U4).
W5  Then a topic with a record that waits alone is visited once an hour, and any other one never (U2).
W6  Processes that start visit the topics in different orders (U1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Final

from tests.harness.brokers.broker_episode import BrokerEpisode, BrokerNemesis
from tests.harness.brokers.broker_machine import (
    THREAD_MS,
    BrokerCluster,
    BrokerMachine,
    MakeBroker,
    MakeCatalog,
    MakeVacuum,
    TopicsClient,
)
from tests.harness.brokers.memory_topics import MemoryTopics
from tests.harness.cluster.histories.episode import Report
from tests.harness.cluster.machine import RESTART_MS, Machine
from tests.harness.cluster.node_threads import NodeClock, NodeLoop, NodeThread
from tests.harness.cluster.virtual_time import Process
from topicsd.broker.catalog_of_store import FOLDERS
from topicsd.broker.upkeep.compaction_choice import OBJECT_BYTES_MAX, CompactorLimits
from topicsd.broker.upkeep.scheduler import UpkeepLimits, UpkeepScheduler
from topicsd.catalog.shared.shared_catalog import Claim, SharedTopic

STORE_SECONDS: Final = 20.0
LEASE_MS: Final = 60_000
VACUUM_SECONDS: Final = 600.0
"""Short, so that a history has several."""
STOP_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
SETTLE_MS: Final = 3 * HOUR_MS
"""Longer than the pauses before a visit that merges, and than the longest grace and a vacuum after it."""
PASSES_MS: Final = 300_000
"""Longer than some passes of each scheduler."""
NEW_TOPICS: Final = 4
VISIT_VERBS: Final = {
    "begin_compaction",
    "claim",
    "extents_from",
    "finish_compaction",
    "release",
    "topics",
    "trim",
}


class ScheduleChoice:
    """What the schedulers of one history are given; drawn apart, so that all else in the history stays."""

    def __init__(self, seed: str, store_skew_ms: int) -> None:
        self._rng = Random(f"{seed} upkeep")
        self.workers = self._rng.choice((1, 2, 3))
        self.has_catalog_clock = self._rng.random() < 0.5
        self._pass_seconds = self._rng.choice((20.0, 60.0))
        self._store_skew_ms = store_skew_ms

    def limits(self) -> UpkeepLimits:
        rng = self._rng
        return UpkeepLimits(
            workers=self.workers,
            pass_seconds=self._pass_seconds,
            vacuum_seconds=VACUUM_SECONDS,
            grace_ms=rng.choice((0, 60_000, HOUR_MS)),
            # Two compactors of one topic choose different ranges.
            compactor=CompactorLimits(rng.choice((500, 5_000, OBJECT_BYTES_MAX)), lease_ms=LEASE_MS),
            has_catalog_clock=self.has_catalog_clock,
        )

    def right_clock_ms(self) -> int:
        return self._store_skew_ms + self._rng.randint(-20_000, 20_000)

    def rng(self) -> Random:
        return Random(self._rng.random())


class VisitsClient(TopicsClient):
    """The catalog as a scheduler reaches it: judges its calls (W1, W2), and notes its visits."""

    def __init__(
        self, cluster: BrokerCluster, process: Process, node: str, workers: int, may_visit: bool
    ) -> None:
        super().__init__(cluster, process, node)
        self._workers = workers
        self._may_visit = may_visit
        self.running: set[str] = set()
        """The topics that a visit makes a call for."""
        self.visits: Counter[str] = Counter()
        self.order: list[str] = []
        """The topics as they were visited first."""

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        return partial(self._visit if verb in VISIT_VERBS else self._request, verb)

    def _visit(self, verb: str, *args: Any) -> Any:
        first = args[0]
        name = first.topic if isinstance(first, Claim) else first if isinstance(first, str) else first[0]
        running = self.running
        assert self._may_visit, f"{verb} {name}: the clock of this process is wrong (W2)"
        assert name not in running, f"{verb} {name}: another visit of this process is there (W1)"
        assert len(running) < self._workers, f"{verb} {name}: {len(running)} visits run already (W1)"
        if verb == "claim":
            self.visits[name] += 1
            if name not in self.order:
                self.order.append(name)
        running.add(name)
        try:
            return self._request(verb, *args)
        finally:
            running.discard(name)


class ScheduledMachine(BrokerMachine):
    """A broker with a scheduler in its process."""

    def __init__(
        self,
        cluster: BrokerCluster,
        name: str,
        make_broker: MakeBroker,
        make_vacuum: MakeVacuum,
        poll_seconds: float,
        choice: ScheduleChoice,
        is_clock_right: bool,
    ) -> None:
        super().__init__(cluster, name, make_broker, make_vacuum, poll_seconds)
        self._choice = choice
        if is_clock_right:
            self.skew_ms = choice.right_clock_ms()
        self.may_visit = choice.has_catalog_clock or is_clock_right
        self.scheduler: UpkeepScheduler | None = None
        self.visits: VisitsClient | None = None
        self.done: Counter[str] = Counter()
        self._is_draining = False

    @property
    def compactor_name(self) -> str:
        return f"{self.name}/{self.runs}"

    def boot(self, process: Process) -> None:
        super().boot(process)
        self._count()
        self._is_draining = False
        loop, choice = NodeLoop(process), self._choice
        self.visits = VisitsClient(self.broker_cluster, process, self.name, choice.workers, self.may_visit)
        self.scheduler = UpkeepScheduler(
            NodeClock(process, self.skew_ms),
            loop,
            self.store_client(process),
            self.visits,
            partial(process.retries, STORE_SECONDS),
            choice.limits(),
            self.compactor_name,
            lambda name: NodeThread(process, loop, THREAD_MS),
            choice.rng(),
        )
        self.world.after(0, self.scheduler.start, process=process)

    def _count(self) -> None:
        """Note what the scheduler of the last run has done."""
        if self.scheduler is not None:
            counts = self.scheduler.counts
            for what in ("runs", "merged", "busy", "refused", "failed", "recovered", "vacuums"):
                self.done[f"scheduler: {what}"] += getattr(counts, what)

    def drain(self) -> None:
        """End as at SIGTERM: the scheduler is stopped, then the process ends."""
        process, scheduler = self.process, self.scheduler
        if self.is_up and not self._is_draining and process is not None and scheduler is not None:
            self._is_draining = True
            self.world.note(f"{self.name} drains")
            self.world.after(0, scheduler.stop, partial(self._on_drained, process), process=process)

    def _on_drained(self, process: Process) -> None:
        if process is self.process:
            self.kill()


class ScheduledNemesis(BrokerNemesis):
    """Also drains of processes."""

    def _faults(self, machine: Machine) -> list[tuple[str, Callable[[], object]]]:
        assert isinstance(machine, ScheduledMachine)
        return [*super()._faults(machine), ("drain", machine.drain)]


class ScheduledEpisode(BrokerEpisode):
    """An hour of a history in which schedulers run beside the compactors, and hours after it."""

    def __init__(self, seed: str, make_catalog: MakeCatalog = MemoryTopics) -> None:
        self._choices: list[ScheduleChoice] = []
        super().__init__(seed, make_catalog=make_catalog, is_long=True)
        self.schedulers = [machine for machine in self.machines if isinstance(machine, ScheduledMachine)]

    def make_machine(
        self, name: str, make_broker: MakeBroker, make_vacuum: MakeVacuum, poll_seconds: float
    ) -> BrokerMachine:
        if not self._choices:
            self._choices.append(ScheduleChoice(self.world.seed, self.cluster.store.skew_ms))
        # Two, since a machine may be lost.
        is_right = not self._choices[0].has_catalog_clock and name in ("b0", "b1")
        return ScheduledMachine(
            self.cluster, name, make_broker, make_vacuum, poll_seconds, self._choices[0], is_right
        )

    def make_nemesis(self, slower: int) -> BrokerNemesis:
        return ScheduledNemesis(self.cluster, self.machines, 1, slower)

    def check_end(self) -> None:
        self._create_topics("new")
        self._check_stop()
        self.world.run_for(PASSES_MS)
        self._create_topics("later")
        self.world.run_for(SETTLE_MS)
        self._check_merged()
        self._check_store()
        self._check_idle_hour()
        self._check_orders()
        # All is read again, from compacted objects now.
        self.check_services("merged")
        super().check_end()

    def report(self) -> Report:
        report = super().report()
        for machine in self.schedulers:
            report.counts.update(machine.done)
        return report

    def _present(self) -> list[ScheduledMachine]:
        """Return the machines whose schedulers work."""
        return [one for one in self.schedulers if one.may_visit and not one.is_lost]

    def _create_topics(self, prefix: str) -> None:
        """Create topics with two blobs each, and one with a record that waits alone."""
        machine = self._present()[0]
        for number in range(NEW_TOPICS):
            name = f"{prefix}{number}"
            self.cluster.topics.create(name, 1 + number, b"{}")
            for value in range(2 if number else 1):
                self.append(machine, name, f'"{name} {value}"'.encode())

    def _check_stop(self) -> None:
        """Stop a scheduler in a visit (W3)."""
        machine = self._present()[0]
        is_amid = self.world.run_until(lambda: self._is_amid(machine), SETTLE_MS)
        assert is_amid, f"{machine.name}: no visit (W4)"
        compactor, run = machine.compactor_name, machine.runs
        machine.drain()
        is_drained = self.world.run_until(lambda: machine.runs > run, STOP_MS)
        assert is_drained, f"{machine.name}: does not stop (W3)"
        claims = self.cluster.topics.claims_of(compactor)
        assert not claims, f"{compactor}: stopped, and has the claims of {claims} (W3)"

    def _is_amid(self, machine: ScheduledMachine) -> bool:
        """Return whether a visit of a machine has a claim, and no call that may end it."""
        visits = machine.visits
        claims = self.cluster.topics.claims_of(machine.compactor_name)
        return visits is not None and machine.is_up and bool(visits.running.intersection(claims))

    def _check_merged(self) -> None:
        for topic in self.cluster.topics.all():
            waiting = [one for one in self.cluster.topics.extents(topic) if one.type == "WAL"]
            # Nothing was appended for hours.
            assert len(waiting) <= 1, f"{topic.name}: {len(waiting)} slices are not merged (W4)"
            self.book.counts["topics judged"] += 1

    def _check_store(self) -> None:
        objects = self.cluster.store.objects
        orphans = [
            key for key in objects if key.startswith(FOLDERS) and not self.cluster.topics.is_named(key)
        ]
        assert not orphans, f"{orphans} are not vacuumed (W4)"

    def _check_idle_hour(self) -> None:
        machines = self._present()
        before = [Counter(machine.visits.visits) for machine in machines if machine.visits is not None]
        self.world.run_for(HOUR_MS)
        topics = self.cluster.topics.all()
        for machine, known in zip(machines, before, strict=True):
            assert machine.visits is not None
            for topic in topics:
                visits = machine.visits.visits[topic.name] - known[topic.name]
                assert visits <= _is_pending(topic) * 2, f"{topic.name}: {visits} visits in an hour (W5)"
                self.book.counts["idle visits"] += visits

    def _check_orders(self) -> None:
        for machine in self._present():
            machine.kill()
        self.world.run_for(RESTART_MS + PASSES_MS)
        orders = [tuple(one.visits.order) for one in self._present() if one.visits is not None]
        topics = len(self.cluster.topics.all())
        assert all(len(order) == topics for order in orders), f"{orders}: topics are not visited (W4)"
        assert len(orders) < 2 or len(set(orders)) > 1, f"all processes visit {orders[0]} (W6)"


def _is_pending(topic: SharedTopic) -> bool:
    return topic.head > max(topic.compacted_to, topic.first_seq - 1)
