"""Two nodes on one catalog and one store: a record that is written at one is read at the other at once.

Real loops, threads and files: brokers on SQLite and on a file store, as `topicsd serve` opens them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.runtime.clock import SystemClock
from shared.runtime.retries import Retries
from tests.harness.shard.one_shard import OneShard
from tests.harness.stage.feed_shards import FakeStream, reader_options
from tests.harness.stage.shared_stage import BROKER_NUMBER, EPOCH, FIELDS, RecordedCall
from topicsd.broker.broker import Broker, ReadLimits, start_pools
from topicsd.broker.frames_v1 import NewFrame
from topicsd.broker.write.batcher import BatchLimits
from topicsd.broker.write.open_blob import Appended, Group
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog
from topicsd.disk.fs import RealFs
from topicsd.engine.read.page_cache import PageCache
from topicsd.engine.wakeups.wake_queue import WakeQueue
from topicsd.service.request_counts import RequestCounts
from topicsd.service.shared.read import SharedReadHandlers
from topicsd.store.file_objects import FileObjects
from topicsd.stream.feeds import Feeds
from topicsd.stream.shared.shared_feed import SharedTopics
from topicsd.stream.shared.shared_reads import SharedReads
from topicsd.stream.sse_stream import SseStream

SECONDS_MAX = 1.0


class Node:
    """The broker process of one node, without connections."""

    def __init__(self, folder: Path) -> None:
        loop, clock = asyncio.get_running_loop(), SystemClock()
        self.loop = loop
        self.clock = clock
        self.pools = start_pools(loop)
        self.catalog = SqliteSharedCatalog(str(folder / "catalog.sqlite"), clock.now_ms)
        store = FileObjects(RealFs(), str(folder / "store"))

        def retries() -> Retries:
            return Retries(clock.monotonic, time.sleep, 5.0)

        limits = BatchLimits(batch_seconds=0.01)
        self.broker = Broker(
            clock, loop, self.pools, store, self.catalog, retries, limits, ReadLimits(poll_seconds=0.1)
        )
        reads = SharedReads(self.broker, PageCache(8 << 20), clock)
        topics = SharedTopics(self.broker, reads, WakeQueue(loop, clock), loop, clock)
        one = OneShard()
        self.feeds = Feeds(one.shard.state, loop, BROKER_NUMBER, broker_number=BROKER_NUMBER, shared=topics)
        self.handlers = SharedReadHandlers(reads, self.feeds, one.settings, loop, clock, RequestCounts(clock))

    async def append(self, name: str, *values: bytes) -> Appended:
        answer: asyncio.Future[Any] = self.loop.create_future()
        self.broker.append(Group(name, [NewFrame(value) for value in values]), answer.set_result)
        appended = await answer
        assert isinstance(appended, Appended), appended
        return appended

    async def read(self, name: str, **body: Any) -> Any:
        call = WaitedCall(name, "", FIELDS, msgspec.json.encode(body), self.clock.monotonic())
        call.done = self.loop.create_future()
        self.handlers.table["diff"](call)
        await call.done
        return msgspec.json.decode(call.answer[1])

    def close(self) -> None:
        self.broker.heads.close()
        self.pools.stop()
        self.catalog.close()


class WaitedCall(RecordedCall, kw_only=True, eq=False):
    done: Any = None

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        super().send_parts(parts, length, status, fields)
        self.done.set_result(None)


class Topics:
    """A watch session of one topic from its start."""

    heartbeat_ms = 60_000

    def __init__(self) -> None:
        self.names = ["a"]
        self.seqs, self.epochs, self.first_epochs = [0], [EPOCH], [EPOCH]


Scenario = Callable[[Node, Node], Any]


@pytest.fixture(name="run_nodes")
def _run_nodes(tmp_path: Path) -> Callable[[Scenario], None]:
    def run(scenario: Scenario) -> None:
        async def start() -> None:
            (tmp_path / "store").mkdir()
            nodes = Node(tmp_path), Node(tmp_path)
            nodes[0].catalog.create("a", EPOCH, b"{}")
            try:
                await asyncio.wait_for(scenario(*nodes), 30)
            finally:
                for node in nodes:
                    node.close()

        asyncio.run(start())

    return run


def test_a_long_poll_returns_a_record_of_another_node_within_a_second(run_nodes: Any) -> None:
    async def scenario(first: Node, second: Node) -> None:
        assert (await second.read("a"))["records"] == []
        for number in range(5):
            waiting = asyncio.create_task(second.read("a", after_seq=number, wait_ms=20_000))
            appended = await first.append("a", b"%d" % number)
            began = time.monotonic()
            answer = await waiting
            assert time.monotonic() - began < SECONDS_MAX
            assert [one["$seq"] for one in answer["records"]] == [appended.first_seq]
            assert answer["epoch"] == EPOCH

    run_nodes(scenario)


def test_a_watch_delivers_records_of_another_node_within_a_second(run_nodes: Any) -> None:
    async def scenario(first: Node, second: Node) -> None:
        # As the creation of a session does, which looks up the heads.
        assert (await second.read("a"))["head_seq"] == 0
        stream, topics = FakeStream(), Topics()
        written = asyncio.Event()
        stream.on_write = written.set
        sse = SseStream(
            stream,
            second.feeds,
            second.loop,
            second.clock,
            topics,
            reader_options(),
            stream.on_end,
            stream.on_lag,
        )
        sse.begin()
        await written.wait()
        for number in range(5):
            await first.append("a", b"%d" % number)
            began = time.monotonic()
            while topics.seqs[0] <= number:
                written.clear()
                await asyncio.wait_for(written.wait(), SECONDS_MAX)
            assert time.monotonic() - began < SECONDS_MAX
        records = [event.data["records"] for event in stream.take() if event.name == "record"]
        assert [one["data"] for chunk in records for one in chunk] == list(range(5))
        sse.end("shutting_down", "the test is over")

    run_nodes(scenario)


def test_what_one_node_wrote_before_is_read_from_the_store_at_the_other(run_nodes: Any) -> None:
    async def scenario(first: Node, second: Node) -> None:
        for number in range(20):
            await first.append("a", *[b'"%d-%d"' % (number, one) for one in range(10)])
        expected = await first.read("a", limit=1000)
        answer = await second.read("a", limit=1000)
        assert answer["records"] == expected["records"]
        assert len(answer["records"]) == 200
        middle = expected["records"][99]["$ts"]
        by_time = await second.read("a", from_ts=middle, limit=1)
        (first_record,) = by_time["records"]
        assert first_record == next(one for one in expected["records"] if one["$ts"] >= middle)

    run_nodes(scenario)
