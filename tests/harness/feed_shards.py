"""Two shards and the feeds between them, without a socket: a link that can be cut, and sinks.

Promises: the shards share a clock and a loop, so one `settle` runs both. A topic is placed on the shard whose
number ends its name. The link takes one turn of the loop in each direction; while it is `cut` the other shard
is unreachable, and messages in transit are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shared.contract.errors import NOT_READY, Refusal
from shared.contract.reader_options import ReaderOptions
from shared.ipc.link import LinkRequest
from shared.ipc.link_kind import LinkKind
from tests.harness.fake_link import FakeLink
from tests.harness.manual_clock import ManualClock
from tests.harness.one_shard import OneShard
from topicsd.stream.chunks import Chunk, FeedSpec
from topicsd.stream.feed import Feed, LocalFeed
from topicsd.stream.feeds import Feeds
from topicsd.stream.remote_feed import RemoteFeed, RemoteShards
from topicsd.stream.sse_stream import SseStream
from topicsd.stream.stream import noop
from topicsd.stream.subscription import Subscription


def feed_spec(topic: str, **changes: Any) -> FeedSpec:
    return FeedSpec(topic, reader_options(**changes))


def reader_options(**changes: Any) -> ReaderOptions:
    return ReaderOptions(**{"with_tags": False, **changes})


class FeedShards:
    def __init__(self, **settings: Any) -> None:
        self.clock = ManualClock()
        self.home = OneShard(clock=self.clock, **settings)
        self.away = OneShard(clock=self.clock, **settings)
        self.link = FakeLink(lambda: self.home.loop, self._answer)
        state = self.home.shard.state
        ways = RemoteShards(self.link, self._refusal, state.wake_queue, self.home.loop)
        self.feeds = _StageFeeds(self, ways)
        self.away_feeds = Feeds(self.away.shard.state, self.away.loop)

    def _answer(self, kind: LinkKind, payload: bytes, request: LinkRequest) -> None:
        assert kind == LinkKind.FEED
        self.away_feeds.answer(payload, request)

    def shard_of(self, topic: str) -> OneShard:
        return self.away if topic.endswith("1") else self.home

    def settle(self) -> None:
        for _ in range(50):
            self.home.settle()
            self.away.settle()

    def pass_time(self, ms: int) -> None:
        for _ in range(max(1, ms // 50)):
            self.home.pass_time(min(ms, 50))
            self.away.settle()
            self.settle()

    def cut(self) -> None:
        self.link.cut()

    def reconnect(self) -> None:
        self.link.is_cut = False

    def restart_away(self, kill: bool = True) -> None:
        """Kill or restart the other worker, and start its replacement."""
        self.cut()
        self.away.kill() if kill else self.away.restart()
        self.away_feeds = Feeds(self.away.shard.state, self.away.loop)

    def _refusal(self, shard: int) -> Refusal | None:
        return Refusal(NOT_READY, "shard 1 is gone", {"shard": 1}, 1000) if self.link.is_cut else None


class _StageFeeds(Feeds):
    """Feeds that place a topic by the end of its name."""

    def __init__(self, stage: FeedShards, ways: RemoteShards) -> None:
        super().__init__(stage.home.shard.state, stage.home.loop, 0, 2, ways)
        self._stage_ways = ways

    def _make(self, owner: int, spec: FeedSpec) -> Feed:
        if spec.topic.endswith("1"):
            return RemoteFeed(self._stage_ways, 1, spec, self._drop_feed)
        return LocalFeed(self._shard, self._loop, spec, self._drop_feed)


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
        self.stamp: Callable[[], Any] = noop
        """Called for each written event; its result is kept beside the event."""
        self._stamps: list[Any] = []
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
        self._stamps += [self.stamp()] * data.count(b"\n\n")

    def close(self) -> None:
        self.is_closed = True

    def unpause(self) -> None:
        self.is_paused = False
        self.on_ready()

    def take(self) -> list[Event]:
        """Return the events since the last call."""
        assert self.written == b"" or self.written.endswith(b"\n\n")
        text, self.written = self.written, b""
        stamps, self._stamps = self._stamps, []
        events = []
        for block, stamp in zip(text.split(b"\n\n")[:-1], stamps, strict=True):
            event = read_event(block)
            if event is not None:
                event.stamp = stamp
                events.append(event)
        return events


class Event(msgspec.Struct):
    id: str
    name: str
    data: Any
    stamp: Any = None


def read_event(block: bytes) -> Event | None:
    """Parse an event as a client does; return None for a block that is no event."""
    id_, name, data = "", "", []
    for line in block.decode().split("\n"):
        field, _, value = line.partition(": ")
        if field == "id":
            id_ = value
        elif field == "event":
            name = value
        elif field == "data":
            data.append(value)
    return Event(id_, name, msgspec.json.decode("\n".join(data))) if data else None


class StreamTopics:
    """The topics and positions of a stream, as in a watch session."""

    def __init__(self, stage: FeedShards, seqs: dict[str, int], heartbeat_ms: int = 15_000) -> None:
        self.names = list(seqs)
        self.seqs = list(seqs.values())
        self.epochs = [stage.shard_of(name).topic(name).epoch for name in seqs]
        self.first_epochs = list(self.epochs)
        self.heartbeat_ms = heartbeat_ms


def follow(
    stage: FeedShards, following: StreamTopics, stamp: Callable[[], Any] = noop, **changes: Any
) -> tuple[FakeStream, SseStream]:
    stream = FakeStream()
    stream.stamp = stamp
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
