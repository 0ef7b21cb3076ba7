"""The handlers of a broker, over a catalog in SQLite and a store in a folder, with requests as values.

Promises: time passes only in `wait_ms`, and threads run only in `settle`. Each request is answered once, or
the test fails. Local topics are the names in `local`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shared.contract.errors import Refusal
from shared.http.head import Fields
from shared.runtime.retries import Retries
from shared.settings.settings import Settings
from tests.harness.brokers.one_broker import CountedTopics
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop, StepThread
from tests.harness.shard.one_shard import OneShard
from topicsd.broker.broker import Broker, ReadLimits, make_pools
from topicsd.broker.write.batcher import BatchLimits
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog
from topicsd.disk.fs import RealFs
from topicsd.engine.read.page_cache import PageCache
from topicsd.engine.wakeups.wake_queue import WakeQueue
from topicsd.service.call import Call
from topicsd.service.input.record_upload import OCTETS
from topicsd.service.request_counts import RequestCounts
from topicsd.service.shared.names import no_local_topics
from topicsd.service.shared.operations import SharedOperations
from topicsd.service.shared.read import SharedReadHandlers
from topicsd.store.file_objects import FileObjects
from topicsd.stream.feeds import Feeds
from topicsd.stream.shared.shared_feed import SharedTopics
from topicsd.stream.shared.shared_reads import SharedReads

JSON = Fields(content_type="application/json")
LOCAL = 299
"""The status of a request that was left to a shard."""


class SharedAnswer:
    """The answer to one request; `status` is 0 before."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.fields = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])

    @property
    def field(self) -> str:
        return str(self.json["error"]["detail"]["field"])


class ManualCall(Call, kw_only=True, eq=False):
    answer: SharedAnswer

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        assert not self.answer.status, "answered twice"
        self.answer.status, self.answer.body = status, b"".join(parts)
        assert len(self.answer.body) == length
        self.answer.fields = fields


class SharedCalls:
    def __init__(
        self,
        folder: Path,
        batch_limits: BatchLimits = BatchLimits(),  # noqa: B008
        **settings: Any,
    ) -> None:
        (folder / "store").mkdir(exist_ok=True)
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.threads: list[StepThread] = []
        self.local: set[str] = set()
        fs = RealFs()
        self.store_url = f"file://{folder / 'store'}"
        real = SqliteSharedCatalog(str(folder / "catalog"), self.clock.now_ms)
        self.catalog = CountedTopics(real)  # type: ignore[arg-type]
        self.broker = Broker(
            self.clock,
            self.loop,
            make_pools(self._thread),
            FileObjects(fs, str(folder / "store")),
            self.catalog,
            lambda: Retries(self.clock.monotonic, lambda seconds: None, 10.0, lambda: 1.0),
            batch_limits,
            ReadLimits(),
        )
        self.counts = RequestCounts(self.clock)
        reads = SharedReads(self.broker, PageCache(1 << 20), self.clock)
        limits = msgspec.structs.replace(Settings(), **settings)
        topics = SharedTopics(self.broker, reads, WakeQueue(self.loop, self.clock), self.loop, self.clock)
        feeds = Feeds(OneShard().shard.state, self.loop, 0, broker_number=0, shared=topics)
        handlers = SharedReadHandlers(reads, feeds, limits, self.loop, self.clock, self.counts)
        self.operations = SharedOperations(
            self.broker,
            limits,
            self.clock,
            self.counts,
            reads.seek,
            handlers.table,
            {},
            self._find_local,
            no_local_topics,
        )

    def _thread(self, name: str) -> StepThread:
        thread = StepThread(self.loop)
        self.threads.append(thread)
        return thread

    def _find_local(self, name: str, reply: Callable[[bool | Refusal], object]) -> None:
        self.loop.call_soon(reply, name in self.local)

    def settle(self) -> None:
        """Run what is ready, on the loop and on the threads; time does not pass."""
        self.loop.run_until_idle()
        while any(thread.run_one() for thread in self.threads):
            self.loop.run_until_idle()

    def wait_ms(self, ms: float, step_ms: float = 10) -> None:
        while ms > 0:
            self.loop.advance(min(step_ms, ms))
            self.settle()
            ms -= step_ms

    # -- requests

    def call(self, name: str, body: object, **fields: Any) -> ManualCall:
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        query, sent = fields.pop("query", ""), fields.pop("sent_fields", JSON)
        return ManualCall(name, query, sent, data, self.clock.monotonic(), answer=SharedAnswer(), **fields)

    def begin(self, operation: str, name: str = "", body: object = None, **fields: Any) -> ManualCall:
        """Begin a request; an endpoint without a topic has no name."""
        call = self.call(name, body, **fields)
        if name:
            self.operations.start(operation, call, lambda: call.send(b"{}", LOCAL))
        else:
            self.operations.endpoints[operation](call)
        self.settle()
        return call

    def upload(self, name: str, data: bytes, query: str = "", key: str | None = None) -> SharedAnswer:
        """Append a record of bytes."""
        fields = msgspec.structs.replace(JSON, content_type=OCTETS, idempotency_key=key)
        return self.ask("append_record", name, data, query=query, sent_fields=fields)

    def ask(self, operation: str, name: str = "", body: object = None, **fields: Any) -> SharedAnswer:
        """Make a request, and let the time of a batch pass until it is answered."""
        answer = self.begin(operation, name, body, **fields).answer
        for _ in range(100):
            if answer.status:
                return answer
            self.wait_ms(10)
        raise AssertionError(f"{operation} {name} is not answered")

    def produce(self, *groups: tuple[str, int, list[Any]], **fields: Any) -> SharedAnswer:
        partitions = [
            {"topic": topic, "partition": partition, "records": records}
            for topic, partition, records in groups
        ]
        return self.ask("produce", body={"topic_partitions": partitions}, **fields)

    def consume(self, *reads: tuple[str, int, int], **options: Any) -> SharedAnswer:
        partitions = [
            {"topic": topic, "partition": partition, "fetch_offset": offset}
            for topic, partition, offset in reads
        ]
        return self.ask("consume", body={"topic_partitions": partitions, **options})

    def append(self, name: str, *values: object, **envelope: Any) -> SharedAnswer:
        return self.ask("append", name, {"records": [{"data": one} for one in values], **envelope})

    def create(self, name: str, **config: Any) -> SharedAnswer:
        answer = self.ask("put_topic", name, {"placement": "shared", **config})
        assert answer.status == 201, answer.body
        return answer
