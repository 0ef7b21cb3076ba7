"""A broker whose store answers 503 for a minute: it refuses writes, keeps its bounds, and continues."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shared.contract.errors import Refusal
from tests.harness.brokers.broker_book import BrokerBook
from tests.harness.brokers.broker_clients import BoundsMonitor, BrokerClient, TopicReader, Writer
from tests.harness.brokers.broker_machine import BrokerCluster, BrokerMachine, open_sqlite
from tests.harness.cluster.virtual_time import World
from topicsd.broker.broker import Broker, ReadLimits
from topicsd.broker.frames_v1 import NewFrame
from topicsd.broker.read.reader import SharedRead, TopicRead, TopicRecords
from topicsd.broker.write.batcher import BatchLimits
from topicsd.broker.write.open_blob import Appended, Group

pytestmark = pytest.mark.usefixtures("quiet_log")

OUTAGE_MS = 60_000
RECOVERY_MS = 10_000
"""Longer than a pause between two tries of a PUT."""
PENDING_BYTES = 20_000


class Pressure:
    """One broker with writers that send more than its queue holds in a minute."""

    def __init__(self, seed: str) -> None:
        self.world = World(seed)
        self.cluster = BrokerCluster(self.world, open_sqlite)
        self.book = BrokerBook(self.cluster.topics)
        self.machine = BrokerMachine(self.cluster, "b")
        self.machine.batch_limits = BatchLimits(pending_bytes=PENDING_BYTES, pending_seconds=10.0)
        self.machine.read_limits = ReadLimits(10_000, 1 << 20, 1 << 20)
        shared = self.cluster, [self.machine], self.book
        self.clients: list[BrokerClient] = [
            *(Writer(*shared, f"w{number}", 100) for number in range(4)),
            *(TopicReader(*shared, f"r{number}", 100) for number in range(2)),
            BoundsMonitor(*shared, "m", 20),
        ]

    def start(self) -> None:
        self.cluster.topics.create("t", 7, b"{}")
        self.machine.start()
        for client in self.clients:
            client.start()
        self.world.run_for(10_000)

    @property
    def broker(self) -> Broker:
        assert self.machine.broker is not None
        return self.machine.broker

    def appended_in(self, ms: float) -> int:
        before = self.book.counts["answer: appended"]
        self.world.run_for(ms)
        return self.book.counts["answer: appended"] - before

    def answer(self, call: Callable[[Broker, Callable[[object], None]], object]) -> tuple[object, float]:
        """Send a request; return its answer, and after how many ms it came."""
        answers: list[tuple[object, int]] = []
        begun = self.world.now_ns
        self.machine.send(lambda broker: call(broker, lambda one: answers.append((one, self.world.now_ns))))
        assert self.world.run_until(lambda: bool(answers), 60_000)
        ((answer, at_ns),) = answers
        return answer, (at_ns - begun) / 1e6

    def waited_ms(self, seconds: float) -> float:
        """Wait at a tail where nothing comes; return for how many ms."""
        request = SharedRead([TopicRead("silent", 1)], wait_seconds=seconds)
        answers, ms = self.answer(lambda broker, reply: broker.read(request, reply))
        assert isinstance(answers, list)
        (answer,) = answers
        assert isinstance(answer, TopicRecords)
        assert (answer.refusal, answer.records) == (None, [])
        return ms


@pytest.mark.parametrize("seed", ["a", "b", "c"])
def test_a_broker_whose_store_is_busy_for_a_minute_refuses_writes_and_continues(seed: str) -> None:
    one = Pressure(seed)
    with one.world:
        one.cluster.topics.create("silent", 8, b"{}")
        one.cluster.topics.fence("silent", 8, "FENCED")
        one.start()
        rate = one.appended_in(5_000)
        assert rate > 50
        assert not one.book.counts["answer: throttled"]

        one.cluster.store.service.is_busy = True
        one.world.run_for(OUTAGE_MS / 2)
        assert 5_000 <= one.waited_ms(5.0) < 5_100
        one.world.run_for(OUTAGE_MS / 2 - 5_000)
        refused = one.book.counts["answer: throttled"]
        assert refused > 50
        assert one.broker.batcher.pending_bytes > 0

        one.cluster.store.service.is_busy = False
        one.world.run_for(RECOVERY_MS)
        later = one.book.counts["answer: throttled"]
        assert one.appended_in(5_000) > rate / 2
        assert one.book.counts["answer: throttled"] == later
        assert 1_000 <= one.waited_ms(1.0) < 1_100

        for client in one.clients:
            client.is_ending = True
        one.world.run_for(60_000)
        assert one.broker.is_drained
        assert one.broker.heads.waiting == 0
        last, ms = one.answer(lambda broker, reply: broker.append(Group("t", [NewFrame(b'"last"')]), reply))
        assert isinstance(last, Appended)
        assert ms < 1_000
        check_contents(one, last.last_seq)
        one.cluster.topics.check()
        one.book.judge()
        assert one.machine.process is not None
        one.machine.process.end()
        one.cluster.topics.close()


def check_contents(one: Pressure, last_seq: int) -> None:
    """Read the topic whole; everything that was acknowledged is there, once."""
    contents: dict[int, bytes] = {}
    while len(contents) < last_seq:
        request = SharedRead([TopicRead("t", len(contents) + 1)], min_bytes=0)
        answers, _ = one.answer(lambda broker, reply, request=request: broker.read(request, reply))  # type: ignore[misc]
        assert isinstance(answers, list)
        (answer,) = answers
        assert not isinstance(answer, Refusal)
        assert answer.records, answer
        contents.update((record.seq, record.data) for record in answer.records)
    one.book.judge_contents(("t", 7), contents, 1)
    assert one.book.counts["acknowledged records judged"] > 500
