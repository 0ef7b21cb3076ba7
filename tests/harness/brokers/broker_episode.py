"""One history of brokers: clients and faults; then everything heals, and the book judges.

The seed decides the whole run. After the faults end, every append is answered and every topic takes records
and can be read whole at every broker, within SETTLE_MS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from shared.contract.errors import NOT_READY, Refusal
from tests.harness.brokers.broker_book import BrokerBook
from tests.harness.brokers.broker_clients import (
    Administrator,
    BoundsMonitor,
    BrokerClient,
    Janitor,
    TopicReader,
    Writer,
)
from tests.harness.brokers.broker_machine import (
    BrokerCluster,
    BrokerMachine,
    MakeBroker,
    MakeCatalog,
    MakeVacuum,
)
from tests.harness.brokers.memory_topics import MemoryTopics
from tests.harness.cluster.histories.episode import QUIET_MS, Report
from tests.harness.cluster.histories.nemesis import Nemesis
from tests.harness.cluster.machine import Machine
from tests.harness.cluster.virtual_time import World
from topicsd.broker.broker import Broker
from topicsd.broker.frames_v1 import NewFrame
from topicsd.broker.read.reader import SharedRead, TopicRead, TopicRecords
from topicsd.broker.upkeep.blob_vacuum import BlobVacuum
from topicsd.broker.write.open_blob import Appended, Group
from topicsd.catalog.shared.shared_catalog import SharedTopic

BROKERS: Final = 3
RUN_MS: Final = 100_000
LONG_RUN_MS: Final = 3_600_000
LONG_STOP_MS: Final = 2_400_000
"""Longer than a commit may be repeated."""
SETTLE_MS: Final = 1_200_000


class BrokerNemesis(Nemesis):
    """Also stops that are longer than everything that a broker waits for."""

    def __init__(
        self, cluster: BrokerCluster, machines: Sequence[Machine], losses_max: int, slower: int
    ) -> None:
        super().__init__(cluster, machines, losses_max)
        self._pause_ms *= slower

    def _faults(self, machine: Machine) -> list[tuple[str, Callable[[], object]]]:
        faults = super()._faults(machine)
        return [*faults, ("long stop", partial(self._stop_long, machine))]

    def _stop_long(self, machine: Machine) -> None:
        machine.stop()
        self._later(LONG_STOP_MS, machine.resume)


class BrokerEpisode:
    def __init__(
        self,
        seed: str,
        make_broker: MakeBroker = Broker,
        make_vacuum: MakeVacuum = BlobVacuum,
        make_catalog: MakeCatalog = MemoryTopics,
        is_long: bool | None = None,
        topics: int = 3,
    ) -> None:
        world = self.world = World(seed)
        rng = world.rng
        self.cluster = BrokerCluster(world, make_catalog)
        self.book = BrokerBook(self.cluster.topics)
        may_be_long = rng.random() < 0.2
        self.is_long = may_be_long if is_long is None else is_long
        pause_ms = 40_000 if self.is_long else rng.choice((500, 2_000))
        # A history of an hour is to be about other things than polls.
        poll_seconds = 10.0 if self.is_long else 0.25
        self.machines = [
            self.make_machine(f"b{number}", make_broker, make_vacuum, poll_seconds)
            for number in range(BROKERS)
        ]
        self.nemesis = self.make_nemesis(20 if self.is_long else 1)
        shared = self.cluster, self.machines, self.book
        self.writers = [Writer(*shared, f"w{number}", pause_ms) for number in range(3)]
        self.administrator = Administrator(*shared, "a", 10 * pause_ms, topics)
        readers = [TopicReader(*shared, f"r{number}", pause_ms) for number in range(2)]
        janitors = [Janitor(*shared, f"j{number}", 10 * pause_ms) for number in range(2)]
        monitor = BoundsMonitor(*shared, "m", 500)
        self.clients: list[BrokerClient] = [*self.writers, *readers, *janitors, self.administrator, monitor]

    def make_machine(
        self, name: str, make_broker: MakeBroker, make_vacuum: MakeVacuum, poll_seconds: float
    ) -> BrokerMachine:
        return BrokerMachine(self.cluster, name, make_broker, make_vacuum, poll_seconds)

    def make_nemesis(self, slower: int) -> BrokerNemesis:
        return BrokerNemesis(self.cluster, self.machines, 1, slower)

    def check_end(self) -> None:
        """Check what must hold when the faults are over and every topic is served."""
        for machine in self.machines:
            assert machine.is_lost or machine.broker is None or machine.broker.heads.waiting == 0, (
                f"{machine.name}: a reader still waits"
            )
        self.cluster.topics.check()
        self.book.judge()

    def run(self) -> Report:
        with self.world:
            try:
                self._run()
            finally:
                for machine in self.machines:
                    if machine.process is not None:
                        machine.process.end()
                self.cluster.topics.close()
        return self.report()

    def _run(self) -> None:
        self.administrator.create_all()
        for machine in self.machines:
            machine.start()
        for client in self.clients:
            client.start()
        self.nemesis.start()
        self.world.run_for(LONG_RUN_MS if self.is_long else RUN_MS)
        self.nemesis.end()
        for client in self.clients:
            client.is_ending = True
        self.world.run_for(QUIET_MS)
        is_settled = self.world.run_until(lambda: not any(one.open for one in self.writers), SETTLE_MS)
        assert is_settled, f"{SETTLE_MS / 1000:.0f} s after the faults, appends are not answered"
        for machine in self.machines:
            machine.start()
        self.administrator.create_all()
        # Removals by others are seen by every broker.
        self.world.run_for(10_000)
        self.check_services("last")
        self.check_end()

    def check_services(self, what: str) -> None:
        """Append to each topic at each broker, read it whole, and compare it with what was acknowledged."""
        for topic in self.cluster.topics.all():
            for machine in self.machines:
                if not machine.is_lost:
                    self._check_service(machine, topic, what)

    def _check_service(self, machine: BrokerMachine, topic: SharedTopic, what: str) -> None:
        value = f'"{what} {machine.name} {topic.name}"'.encode()
        appended = self.append(machine, topic.name, value)
        if isinstance(appended, Refusal) and appended.code == NOT_READY:
            # The topic was made again: the broker has learned it now.
            appended = self.append(machine, topic.name, value)
        assert isinstance(appended, Appended), f"{topic.name}: {machine.name} answers {appended}"
        contents: dict[int, bytes] = {}
        cursor = 1
        key = topic.name, topic.incarnation
        while cursor <= appended.last_seq:
            request = SharedRead([TopicRead(topic.name, cursor, incarnation=topic.incarnation)])
            sent_ns, run = self.world.now_ns, machine.runs
            answer = self._read(machine, request)[0]
            assert answer.refusal is None, f"{topic.name}: {machine.name} answers {answer.refusal}"
            self.book.check_answer(machine, run, request.topics[0], answer, sent_ns)
            assert answer.next_seq > cursor, f"{topic.name}: the read does not advance: {answer}"
            cursor = answer.next_seq
            contents.update((record.seq, record.data) for record in answer.records)
        assert contents[appended.last_seq] == value
        present = self.cluster.topics.present(topic.name)
        assert present is not None
        self.book.judge_contents(key, contents, present.first_seq)

    def append(self, machine: BrokerMachine, name: str, value: bytes) -> Appended | Refusal:
        answers: list[Appended | Refusal] = []
        machine.send(lambda broker: broker.append(Group(name, [NewFrame(value)]), answers.append))
        assert self.world.run_until(lambda: bool(answers), SETTLE_MS), f"{name}: no answer to an append"
        return answers[0]

    def _read(self, machine: BrokerMachine, request: SharedRead) -> list[TopicRecords]:
        answers: list[list[TopicRecords]] = []
        machine.send(lambda broker: broker.read(request, answers.append))
        assert self.world.run_until(lambda: bool(answers), SETTLE_MS), f"no answer to {request}"
        return answers[0]

    def report(self) -> Report:
        counts: Counter[str] = Counter(self.book.counts)
        network = self.cluster.network
        counts.update({f"request: {fault}": count for fault, count in network.faults.items()})
        counts.update({f"end before {label}": count for label, count in network.crashes.items()})
        counts.update({f"fault: {fault}": count for fault, count in self.nemesis.done.items()})
        for machine in self.machines:
            counts += machine.reports
        counts["objects deleted"] = self.cluster.store.deleted
        counts["blobs condemned"] = self.cluster.topics.condemned_count
        return Report(self.world.steps, network.requests, counts, self.world.digest)
