"""A story of two brokers on one catalog and one store, as what their clients got.

Nothing in the transcript depends on the catalog, the store, or how requests met in blobs: it has seqs, times,
bytes and statuses, and no keys. The wall clock stands still but for jumps, which also age rows and leases.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from shared.contract.errors import Refusal
from tests.harness.machine.manual_clock import ManualClock
from tests.stack.engines import POLICY
from topicsd.broker.broker import Broker, BrokerPools, ReadLimits, start_pools
from topicsd.broker.catalog_of_store import FOLDERS, adopt_store
from topicsd.broker.frames_v1 import NewFrame
from topicsd.broker.read.reader import ROW_SECONDS, SharedRead, TopicRead, TopicRecords
from topicsd.broker.steps import BlockingSteps
from topicsd.broker.upkeep.blob_vacuum import BlobVacuum
from topicsd.broker.upkeep.compaction_choice import CompactorLimits
from topicsd.broker.upkeep.compactor import Compactor
from topicsd.broker.write.batcher import BatchLimits
from topicsd.broker.write.open_blob import Appended, Group
from topicsd.catalog.shared.shared_catalog import REPEATED_MS, Producer, SharedCatalog, SharedTopic
from topicsd.store.object_store import ObjectStore

BATCH: Final = BatchLimits(batch_seconds=0.02, urgent_batch_seconds=0.01)
READ: Final = ReadLimits(poll_seconds=0.05)
ROW_MS: Final = ROW_SECONDS * 1000 + 1000
ORDERS, PARTITION = "orders", "orders:1"


class StoryClock(ManualClock):
    """Wall time that only jumps; monotonic time that runs, and jumps with it."""

    def __init__(self, follower: ManualClock | None = None) -> None:
        super().__init__()
        self._follower = follower

    def advance(self, ms: float) -> None:
        super().advance(ms)
        if self._follower is not None:
            self._follower.advance(ms)

    def monotonic(self) -> float:
        return super().monotonic() + time.monotonic()


class BrokerStory:
    def __init__(
        self,
        clock: StoryClock,
        open_catalog: Callable[[], SharedCatalog],
        open_store: Callable[[], ObjectStore],
    ) -> None:
        self._clock = clock
        self._open_catalog = open_catalog
        self._open_store = open_store
        self._pools: list[BrokerPools] = []
        self._catalog, self._store = open_catalog(), open_store()
        adopt_store(self._store, self._catalog, lambda: POLICY)
        self.transcript: list[Any] = []
        self.across_seconds = 0.0
        """The time from an append at one broker to the answer of a waiting read at the other one."""

    def run(self) -> list[Any]:
        asyncio.run(self._play())
        for pools in self._pools:
            pools.stop()
        return self.transcript

    async def _play(self) -> None:
        a, b = self._broker(), self._broker()
        await self._create(a, b)
        await self._append(a, b)
        await self._repeat(a, b)
        await self._read(a, b)
        await self._wait(a, b)
        await self._fence(a, b)
        await self._trim(a, b)
        await self._compact(a, b)
        await self._delete(a, b)
        a.close()
        b.close()
        await self._until(lambda: a.is_drained and b.is_drained)

    # -- brokers and their requests

    def _broker(self) -> Broker:
        loop = asyncio.get_running_loop()
        pools = start_pools(loop)
        self._pools.append(pools)
        catalog, store = self._open_catalog(), self._open_store()
        return Broker(self._clock, loop, pools, store, catalog, lambda: POLICY, BATCH, READ)

    async def _ask(self, start: Callable[[Callable[[Any], None]], object]) -> Any:
        future = asyncio.get_running_loop().create_future()
        start(future.set_result)
        outcome = await asyncio.wait_for(future, 30)
        assert not isinstance(outcome, Exception), outcome
        return outcome

    async def _until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _topic(self, start: Callable[[Callable[[Any], None]], object]) -> SharedTopic:
        topic: SharedTopic = await self._ask(start)
        self._say("topic", topic.name, topic.incarnation, topic.log_state, topic.head, topic.first_seq)
        return topic

    def _say(self, *what: Any) -> None:
        self.transcript.append(what)

    async def _write(self, broker: Broker, name: str, *values: bytes, **fields: Any) -> Appended | Refusal:
        records = [NewFrame(value, tag=f"tag {len(value)}") for value in values]
        answer: Appended | Refusal = await self._ask(partial(broker.append, Group(name, records, **fields)))
        if isinstance(answer, Refusal):
            self._say("refused", name, answer.code, answer.detail)
        else:
            self._say("appended", name, answer.first_seq, answer.last_seq, answer.is_repeated)
        return answer

    async def _answers(self, broker: Broker, request: SharedRead) -> list[TopicRecords]:
        answers: list[TopicRecords] = await self._ask(partial(broker.read, request))
        for one in answers:
            refusal = None if one.refusal is None else one.refusal.code
            lost = [(lost.first_seq, lost.last_seq, lost.reason) for lost in one.lost]
            records = [(record.seq, record.ts, record.tag, record.data) for record in one.records]
            self._say("read", one.topic, one.next_seq, one.head, refusal, lost, records)
        return answers

    async def _all(self, broker: Broker, name: str, bytes_max: int = 1 << 20) -> dict[int, bytes]:
        """Read a topic from its start, a part of it at a time."""
        values: dict[int, bytes] = {}
        cursor = 1
        while True:
            request = SharedRead([TopicRead(name, cursor, bytes_max)], min_bytes=0)
            (answer,) = await self._answers(broker, request)
            assert answer.refusal is None, answer.refusal
            values.update((record.seq, record.data) for record in answer.records)
            cursor = answer.next_seq
            if cursor > answer.head:
                return values

    def _finish(self, steps: BlockingSteps[Any]) -> Any:
        """Run background steps to their end."""
        result: Any = None
        while True:
            try:
                result = steps.send(result)()
            except StopIteration as end:
                return end.value

    # -- the story

    async def _create(self, a: Broker, b: Broker) -> None:
        await self._topic(a.create(ORDERS, 7, b"{}"))
        await self._topic(b.create(PARTITION, 8, b'{"ttl_ms":5}'))
        await self._topic(b.create(ORDERS, 9, b"{}"))
        await self._write(a, "no such topic", b"1")

    async def _append(self, a: Broker, b: Broker) -> None:
        for number in range(10):
            await self._write((a, b)[number % 2], ORDERS, b'"one %d"' % number, b"%d" % number)
        # Of one client, without waiting: they keep their order, in both topics.
        groups = [(ORDERS, PARTITION)[number % 2] for number in range(20)]
        many = [
            self._ask(partial(a.append, Group(name, [NewFrame(b"%d" % n)]))) for n, name in enumerate(groups)
        ]
        for name, answer in zip(groups, await asyncio.gather(*many), strict=True):
            self._say("appended", name, answer.first_seq, answer.last_seq)

    async def _repeat(self, a: Broker, b: Broker) -> None:
        for broker, digest in ((a, "d"), (b, "d"), (b, "other")):
            await self._write(broker, ORDERS, b'"keyed"', append_id="key", digest=digest)
        numbers = [(1, 2), (3, 3), (3, 3), (1, 2), (6, 6), (4, 4)]
        for count, (first, last) in enumerate(numbers):
            values = [b'"p %d"' % number for number in range(first, last + 1)]
            await self._write((a, b)[count % 2], PARTITION, *values, producer=Producer("p", first, last))

    async def _read(self, a: Broker, b: Broker) -> None:
        whole = [
            await self._all(broker, ORDERS, size)
            for broker in (a, b, self._broker())
            for size in (1, 1 << 20)
        ]
        assert all(values == whole[0] for values in whole)
        both = SharedRead([TopicRead(PARTITION, 3, 200), TopicRead(ORDERS, 1, 300)], bytes_max=400)
        for broker in (a, b):
            await self._answers(broker, both)

    async def _wait(self, a: Broker, b: Broker) -> None:
        topic = await self._topic(a.trim(await self._ask(a.topics.find(ORDERS)), 0, "deleted"))
        request = SharedRead([TopicRead(ORDERS, topic.head + 1)], min_bytes=1, wait_seconds=10.0)
        waiting = asyncio.create_task(self._answers(b, request))
        await self._until(lambda: bool(b.heads.waiting))
        begun = time.monotonic()
        await self._ask(partial(a.append, Group(ORDERS, [NewFrame(b'"for b"')])))
        await waiting
        self.across_seconds = time.monotonic() - begun
        (empty,) = await self._answers(a, SharedRead([TopicRead(ORDERS, topic.head + 2)], wait_seconds=0.1))
        assert not empty.records

    async def _fence(self, a: Broker, b: Broker) -> None:
        await self._topic(a.fence(ORDERS, 7, "FENCED"))
        await self._write(b, ORDERS, b'"fenced"')
        await self._write(b, ORDERS, b'"keyed"', append_id="key", digest="d")
        await self._topic(b.fence(ORDERS, 7, "OPEN"))
        await self._write(a, ORDERS, b'"open"')

    async def _trim(self, a: Broker, b: Broker) -> None:
        topic: SharedTopic = await self._ask(a.topics.find(ORDERS))
        await self._topic(a.trim(topic, 3, "deleted"))
        await self._topic(b.trim(topic, 5, "evicted"))
        await self._topic(b.trim(topic, 2, "evicted"))
        self._clock.advance(ROW_MS)
        for broker in (a, b):
            await self._all(broker, ORDERS)

    async def _compact(self, a: Broker, b: Broker) -> None:
        before = await self._all(b, ORDERS)
        # Older than this may be compacted; what comes now may not.
        self._clock.advance(REPEATED_MS + 60_000)
        await self._write(b, ORDERS, b'"young"')
        compactor = Compactor("c", self._store, self._catalog, lambda: POLICY, CompactorLimits())
        self._say("compaction", self._finish(compactor.compact(ORDERS)).outcome)
        assert self._finish(compactor.compact(ORDERS)).outcome == "nothing"
        self._vacuum()
        for broker in (a, b, self._broker()):
            after = await self._all(broker, ORDERS, 500)
            assert {seq: after[seq] for seq in before} == before
            assert len(after) == len(before) + 1

    def _vacuum(self) -> None:
        """Delete what no extent names; only that."""
        # S3 has the time of an object in whole seconds, and in a listing exactly.
        vacuum = BlobVacuum(self._store, self._catalog, lambda: POLICY, grace_ms=-1000)
        self._finish(vacuum.run())
        present = {info.key for folder in FOLDERS for info in self._store.list(folder)}
        assert present == vacuum.named()

    async def _delete(self, a: Broker, b: Broker) -> None:
        await self._ask(a.delete(PARTITION, 8))
        self._clock.advance(ROW_MS)
        await self._answers(b, SharedRead([TopicRead(PARTITION, 1)]))
        await self._topic(b.create(PARTITION, 10, b"{}"))
        await self._write(b, PARTITION, b'"another topic"')
        self._clock.advance(ROW_MS)
        for broker in (a, b):
            await self._answers(broker, SharedRead([TopicRead(PARTITION, 1, incarnation=8)]))
            assert await self._all(broker, PARTITION) == {1: b'"another topic"'}
        self._vacuum()
        await self._all(self._broker(), ORDERS)
