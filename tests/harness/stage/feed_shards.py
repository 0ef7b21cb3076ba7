"""Two shards and the feeds between them, with sinks that keep what they receive.

Promises: the feeds are those of the shard `home`; `link` leads from it to the shard `away`. The
tests name most topics so that the name ends with the number of its shard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shared.contract.errors import Refusal
from shared.contract.reader_options import ReaderOptions
from tests.harness.shard.one_shard import OneShard
from tests.harness.stage.shard_stage import ShardStage
from topicsd.stream.chunks import Chunk, FeedSpec
from topicsd.stream.feed import Feed
from topicsd.stream.sse_stream import SseStream
from topicsd.stream.stream import noop
from topicsd.stream.subscription import Subscription


def feed_spec(topic: str, **changes: Any) -> FeedSpec:
    return FeedSpec(topic, reader_options(**changes))


def reader_options(**changes: Any) -> ReaderOptions:
    return ReaderOptions(**{"with_tags": False, **changes})


class FeedShards(ShardStage):
    def __init__(self, **settings: Any) -> None:
        super().__init__(2, **settings)
        self.home, self.away = self.shards
        self.link = self.links[0]
        self.feeds = self.workers[0].streams.feeds

    def cut(self) -> None:
        self.cut_off(1)

    def restart_away(self, kill: bool = True) -> None:
        """Kill or restart the other worker, and start its replacement, which is still unreachable."""
        self.end(1, OneShard.kill if kill else OneShard.restart)
        self.cut()


class Collector:
    """A sink that keeps what it receives."""

    def __init__(self, feed: Feed, seq: int = 0, epoch: int | None = None) -> None:
        self.is_paused = False
        self.chunks: list[Chunk] = []
        self.refusals: list[Refusal] = []
        self.waiting: list[Subscription] = []
        self.has_ended = False
        self.subscription = Subscription(feed, seq, epoch, self)
        self.subscription.resume()

    @property
    def seqs(self) -> list[int]:
        """Return the seqs of the received records."""
        return [
            record["$seq"] for chunk in self.chunks for record in msgspec.json.decode(b"[%b]" % chunk.records)
        ]

    def unpause(self) -> None:
        self.is_paused = False
        paused, self.waiting = self.waiting, []
        for one in paused:
            one.resume()

    def hold(self, subscription: Subscription) -> None:
        self.waiting.append(subscription)

    def deliver(self, subscription: Subscription, chunk: Chunk) -> None:
        if not chunk.is_empty:
            self.chunks.append(chunk)

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        self.refusals.append(refusal)

    def ended(self, subscription: Subscription) -> None:
        self.has_ended = True


class FakeStream:
    """An in-memory stream that is paused or lost when the test says so."""

    def __init__(self) -> None:
        self.on_ready: Callable[[], None] = noop
        self.on_lost: Callable[[], None] = noop
        self.is_paused = self.pauses_at_write = False
        self.is_closed = False
        self.written = b""
        self.on_write: Callable[[], object] = noop
        self.is_lagging = False
        self.has_ended = False

    def on_lag(self, change: int) -> None:
        self.is_lagging = change == 1

    def on_end(self) -> None:
        assert not self.has_ended
        self.has_ended = True

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.written += data
        self.is_paused = self.is_paused or self.pauses_at_write
        self.on_write()

    def close(self) -> None:
        self.is_closed = True

    def unpause(self) -> None:
        self.is_paused = False
        self.on_ready()

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        assert self.written == b"" or self.written.endswith(b"\n\n")
        text, self.written = self.written, b""
        events = [read_event(block) for block in text.split(b"\n\n")[:-1]]
        return [event for event in events if event is not None]


class Event(msgspec.Struct):
    id: str
    name: str
    data: Any


def read_event(block: bytes) -> Event | None:
    """Parse an event as a client does; return None for a block without event and id.

    The event of a block that has nothing but an id, as a heartbeat may, has no name.
    """
    id_, name, data = "", "", []
    for line in block.decode().split("\n"):
        field, _, value = line.partition(": ")
        if field == "id":
            id_ = value
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
    if data:
        return Event(id_, name, msgspec.json.decode("\n".join(data)))
    return Event(id_, "", None) if id_ else None


class StreamTopics:
    """The topics and positions of a stream, as in a watch session."""

    def __init__(self, stage: FeedShards, seqs: dict[str, int], heartbeat_ms: int = 15_000) -> None:
        self.names = list(seqs)
        self.seqs = list(seqs.values())
        self.epochs = [stage.owner(name).topic(name).epoch for name in seqs]
        self.first_epochs = list(self.epochs)
        self.heartbeat_ms = heartbeat_ms


def follow(stage: FeedShards, following: StreamTopics, **changes: Any) -> tuple[FakeStream, SseStream]:
    stream = FakeStream()
    sse = SseStream(
        stream,
        stage.feeds,
        stage.home.loop,
        stage.clock,
        following,
        reader_options(**changes),
        stream.on_end,
        stream.on_lag,
    )
    sse.begin()
    stage.settle()
    return stream, sse
