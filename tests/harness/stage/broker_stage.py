"""Two shards and a broker, or more, of one node, with the links between them, without a socket.

Promises: the broker processes are the last of the stage, and their shards have no topic. Local topics are
placed on the shards as a server places them. Shared topics are made in the catalog, which is in memory, and
records are appended to them at the broker, or at another broker of the same catalog and store.
"""

from __future__ import annotations

from typing import Any

from shared.contract.api_keys import parse_keys
from shared.contract.names import topic_id
from shared.ipc.placement import shard_of
from shared.ipc.shared_placement import SharedPlacement
from shared.runtime.disk_thread import DiskThread
from shared.runtime.retries import Retries
from tests.harness.brokers.memory_topics import MemoryTopics
from tests.harness.brokers.one_broker import CountedTopics
from tests.harness.machine.fake_store import FakeStore
from tests.harness.machine.manual_loop import ManualLoop, StepThread
from tests.harness.stage.shard_stage import ShardStage, StagePeers
from topicsd.broker.broker import Broker, ReadLimits, make_pools
from topicsd.broker.frames_v1 import NewFrame
from topicsd.broker.write.batcher import BatchLimits
from topicsd.broker.write.open_blob import Appended, Group
from topicsd.service.dispatch import Dispatch

SHARDS = 2
BROKER = 2


class BrokerStage(ShardStage):
    def __init__(self, poll_seconds: float = 0.25, brokers: int = 1, **settings: Any) -> None:
        self.broker_numbers = range(BROKER, BROKER + brokers)
        self.brokers: dict[int, Broker] = {}
        self.poll_seconds = poll_seconds
        self.store = FakeStore()
        self.threads: list[StepThread] = []
        super().__init__(SHARDS + brokers, **settings)
        self.other = self._make_broker(self.shards[BROKER].loop)

    def _start_worker(self, number: int) -> Dispatch:
        shard, keys, links = self.shards[number].shard, parse_keys(""), self.links[number]
        broker = None
        if number == BROKER:
            self.topics = MemoryTopics(self.clock.now_ms)
            self.catalog = CountedTopics(self.topics)
        if number in self.broker_numbers:
            broker = self.brokers[number] = self._make_broker(self.shards[number].loop)
        placement, peers = SharedPlacement.fixed(SHARDS), StagePeers(self, number)
        return Dispatch(
            shard,
            keys,
            links,
            number,
            placement,
            peers=peers,
            broker=broker,
            broker_number=max(number, BROKER),
        )

    @property
    def broker(self) -> Broker:
        return self.brokers[BROKER]

    def _make_broker(self, loop: ManualLoop) -> Broker:
        def thread(name: str) -> DiskThread:
            self.threads.append(StepThread(loop))
            return self.threads[-1]

        def retries() -> Retries:
            return Retries(
                self.clock.monotonic, lambda seconds: self.clock.advance(seconds * 1000), 10.0, lambda: 1.0
            )

        return Broker(
            self.clock,
            loop,
            make_pools(thread),
            self.store,
            self.catalog,
            retries,
            BatchLimits(batch_bytes=1),
            ReadLimits(poll_seconds=self.poll_seconds),
        )

    def number_of(self, topic: str) -> int:
        return shard_of(topic_id(topic), SHARDS)

    def settle(self) -> None:
        self.run_until_idle()

    def run_until_idle(self) -> None:
        super().run_until_idle()
        while any(thread.run_one() for thread in self.threads):
            super().run_until_idle()

    def create_shared(self, name: str, incarnation: int = 1 << 50) -> None:
        self.topics.create(name, incarnation, b"{}")

    def append_shared(self, name: str, *values: bytes, at: Broker | None = None) -> None:
        answers: list[object] = []
        (at or self.broker).append(Group(name, [NewFrame(value) for value in values]), answers.append)
        self.settle()
        assert isinstance(answers[0], Appended), answers

    def delete_shared(self, name: str) -> None:
        topic = self.topics.topics([name])[0]
        assert topic is not None
        self.broker.delete(name, topic.incarnation)(lambda outcome: None)
        self.settle()
