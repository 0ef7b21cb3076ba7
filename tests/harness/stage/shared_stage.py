"""A shared topic at a broker beside a local topic on a shard, with the reads and feeds of both.

Promises: broker and shard have one clock. Records that are appended to both have the same seqs and times.
`compare_diff` sends one request to both, and returns both answers without the members that must differ: the
epoch, and how long the request took.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from shared.http.head import Fields
from tests.harness.brokers.one_broker import OneBroker
from tests.harness.shard.one_shard import OneShard, record
from topicsd.broker.frames_v1 import NewFrame
from topicsd.broker.write.open_blob import Group
from topicsd.engine.read.page_cache import PageCache
from topicsd.engine.read.read import Missing
from topicsd.engine.requests import NO_META, NewRecord
from topicsd.engine.wakeups.wake_queue import WakeQueue
from topicsd.service.call import Call
from topicsd.service.diff import Diff, ShardReads
from topicsd.service.request_counts import RequestCounts
from topicsd.service.shared.read import SharedReadHandlers
from topicsd.stream.feeds import Feeds
from topicsd.stream.shared.shared_feed import SharedTopics
from topicsd.stream.shared.shared_reads import SharedReads

EPOCH = 7
PAGES_BYTES = 64 << 20
BROKER_NUMBER = 1
FIELDS = Fields(content_type="application/json")


class RecordedCall(Call, kw_only=True, eq=False):
    """A call whose answer the test reads."""

    answers: list[tuple[int, bytes]] = msgspec.field(default_factory=list)

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        assert sum(map(len, parts)) == length
        self.answers.append((status, b"".join(parts)))

    @property
    def answer(self) -> tuple[int, bytes]:
        (answer,) = self.answers
        return answer


class BrokerReader:
    """The reads, feeds and `diff` of one broker."""

    def __init__(self, one: OneBroker, owner: OneShard, pages_bytes: int = PAGES_BYTES) -> None:
        self.one = one
        self.pages = PageCache(pages_bytes)
        self.reads = SharedReads(one.broker, self.pages, one.clock)
        wake_queue = WakeQueue(one.loop, one.clock)
        self.topics = SharedTopics(one.broker, self.reads, wake_queue, one.loop, one.clock)
        self.feeds = Feeds(
            owner.shard.state, one.loop, BROKER_NUMBER, broker_number=BROKER_NUMBER, shared=self.topics
        )
        counts = RequestCounts(one.clock)
        self.handlers = SharedReadHandlers(
            self.reads, self.feeds, owner.settings, one.loop, one.clock, counts
        )


class SharedStage:
    def __init__(self, one: OneBroker | None = None, **settings: Any) -> None:
        self.one = one or OneBroker()
        self.clock = self.one.clock
        self.shard = OneShard(clock=self.clock, **settings)
        self.reader = BrokerReader(self.one, self.shard)
        state = self.shard.shard.state
        self.local_feeds = Feeds(state, self.shard.loop)
        self._local_diff = Diff[Missing](
            ShardReads(state, self.local_feeds),
            self.shard.settings,
            self.shard.loop,
            self.clock,
            RequestCounts(self.clock),
        )

    def create(self, name: str, config: bytes = b"{}", **local_config: Any) -> None:
        self.one.topics.create(name, EPOCH, config)
        self.shard.put(name, **local_config)

    def append(self, name: str, *records: object) -> None:
        """Append to both topics. A record is a value, or has what `record` of the shards makes."""
        new = [one if isinstance(one, NewRecord) else record(one) for one in records]
        answers: list[Any] = []
        frames = [
            NewFrame(bytes(one.data), one.tag, one.node, b"" if one.meta is NO_META else bytes(one.meta))
            for one in new
        ]
        self.one.broker.append(Group(name, frames), answers.append)
        self.shard.append(name, *new)
        self.one.settle()
        self.advance(300)
        assert answers[0].last_seq, answers

    def advance(self, ms: float, step_ms: float = 10) -> None:
        while ms > 0:
            self.one.advance(min(step_ms, ms))
            self.settle()
            ms -= step_ms

    def settle(self) -> None:
        """Run what is ready; the brokers have one loop, and threads of their own."""
        self.one.settle()
        self.reader.one.settle()
        self.one.settle()
        self.shard.settle()

    # -- diff

    def start_diff(self, name: str, **body: Any) -> tuple[RecordedCall, RecordedCall]:
        """Begin the request at both, the local topic first."""
        calls = (self._call(name, body), self._call(name, body))
        self._local_diff.start(calls[0])
        self.reader.handlers.table["diff"](calls[1])
        self.settle()
        return calls

    def _call(self, name: str, body: dict[str, Any]) -> RecordedCall:
        return RecordedCall(name, "", FIELDS, msgspec.json.encode(body), self.clock.monotonic())

    def compare_diff(self, name: str, **body: Any) -> tuple[tuple[int, bytes], tuple[int, bytes]]:
        local, shared = self.start_diff(name, **body)
        return comparable(local), comparable(shared)

    def shared_diff(self, name: str, **body: Any) -> Any:
        """Return the answer of the shared topic as an object."""
        call = self.begin_diff(name, **body)
        self.settle()
        return msgspec.json.decode(call.answer[1])

    def begin_diff(self, name: str, **body: Any) -> RecordedCall:
        """Begin the request at the shared topic; nothing else runs."""
        call = self._call(name, body)
        self.reader.handlers.table["diff"](call)
        return call


def comparable(call: RecordedCall) -> tuple[int, bytes]:
    status, body = call.answer
    for pattern in (rb'"epoch":\d+', rb'"performance":\{[^}]*\}'):
        body = re.sub(pattern, b"", body)
    return status, body


def repeat(count: int, make: Callable[[int], object]) -> list[object]:
    return [make(number) for number in range(count)]
