"""A stream of server-sent events: the topics of one watch session, on one connection.

Each topic is followed by its own subscription. Chunks are written as they arrive, with the cursor of
all topics as the id. There is no queue: while the client does not read, the subscriptions wait, and later
records are sent in larger chunks when it reads again.

V1  The session remembers what was written for each topic; `Last-Event-ID` only ever moves that back. A
    session that was restored has no such memory, and `Last-Event-ID` sets its cursor.
V2  Every event has a cursor to resume from, also the last event of a stream that ends (`event_stream.py`);
    the session is kept for that.
V3  A heartbeat of a filtered stream has the cursor too, which may be far after the last record sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from shared.contract.errors import CORRUPT_SEGMENT, POSITION_PAST_HEAD, Refusal
from shared.contract.reader_options import ReaderOptions
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.engine.damage import next_from_seq
from topicsd.stream import sse_frames
from topicsd.stream.chunks import Chunk, FeedSpec
from topicsd.stream.cursor_token import cursor_token
from topicsd.stream.event_stream import EventStream
from topicsd.stream.feeds import Feeds
from topicsd.stream.read_limiter import CONCURRENT_READS_MAX, ReadLimiter
from topicsd.stream.stream import Stream
from topicsd.stream.subscription import Subscription


class FollowedTopics(Protocol):
    """The topics that a stream follows, and the cursor up to which records were written."""

    seqs: list[int]
    epochs: list[int]

    @property
    def names(self) -> list[str]: ...
    @property
    def first_epochs(self) -> list[int]:
        """Return the epochs of the session definition, which an id need not include."""
        ...

    @property
    def heartbeat_ms(self) -> int: ...


class SseStream(EventStream):
    """A stream of events. It calls `on_end` once, and `on_lag` with 1 or -1 when it begins or ends to lag."""

    __slots__ = (
        "_has_shared_events",
        "_is_filtered",
        "_limiter",
        "_on_end",
        "_on_lag",
        "_subscriptions",
        "_topics",
        "_waiting",
    )
    _advice = "; reconnect with the last event id"

    def __init__(
        self,
        stream: Stream,
        feeds: Feeds,
        loop: Loop,
        clock: Clock,
        topics: FollowedTopics,
        options: ReaderOptions,
        on_end: Callable[[], object],
        on_lag: Callable[[int], object],
    ) -> None:
        super().__init__(stream, loop, clock, topics.heartbeat_ms)
        self._topics = topics
        self._on_end = on_end
        self._on_lag = on_lag
        self._is_filtered = options.match is not None
        self._has_shared_events = len(topics.names) == 1 and topics.epochs == topics.first_epochs
        """Whether the events of a chunk are the same as in other streams of this topic."""
        self._waiting: list[Subscription] = []
        self._limiter = ReadLimiter(loop, lambda: stream.is_paused, self._on_failure)
        topic_feeds = [feeds.feed(FeedSpec(name, options)) for name in topics.names]
        if len(topic_feeds) > CONCURRENT_READS_MAX:
            topic_feeds = [self._limiter.feed(feed) for feed in topic_feeds]
        self._subscriptions = [
            Subscription(feed, topics.seqs[index], topics.epochs[index], self, index)
            for index, feed in enumerate(topic_feeds)
        ]

    def begin(self) -> None:
        self._stream.write(sse_frames.OPENING)
        self._limiter.resume_all(self._subscriptions[:])

    def _on_failure(self) -> None:
        """Close the stream after an unexpected error; the session is free again.

        The response has begun, so its end is the only way to report the error.
        """
        if not self._is_over:
            self._close()

    # -- results of the subscriptions ----------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        return self._stream.is_paused

    def hold(self, subscription: Subscription) -> None:
        self._start_slow_timer()
        self._waiting.append(subscription)

    def deliver(self, subscription: Subscription, chunk: Chunk) -> None:
        topics, index = self._topics, subscription.index
        is_new = not subscription.has_reported_caught_up
        if chunk.epoch != topics.epochs[index]:
            topics.epochs[index] = chunk.epoch
            self._has_shared_events = False
        if is_new or not self._has_shared_events:
            self._write_chunk(subscription, chunk, is_new)
        elif not chunk.is_empty:
            self._write(sse_frames.events_with_ids(chunk))
        topics.seqs[index] = chunk.to_seq

    def _write_chunk(self, subscription: Subscription, chunk: Chunk, is_new: bool) -> None:
        seqs, index = self._topics.seqs, subscription.index
        events = sse_frames.events_of(chunk)
        if is_new and chunk.is_at_head:
            subscription.has_reported_caught_up = True
            events = events or [(chunk.to_seq, sse_frames.caught_up(chunk))]
        for seq, text in events:
            seqs[index] = seq
            self._write_event(text)

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        name = subscription.feed.spec.topic
        is_damage = refusal.code == CORRUPT_SEGMENT
        detail = refusal.detail if is_damage or refusal.code == POSITION_PAST_HEAD else None
        if is_damage:
            self._topics.seqs[subscription.index] = next_from_seq(refusal)
        self._write_event(
            sse_frames.error(refusal.code, refusal.message, [name], refusal.retry_after_ms, detail)
        )
        if subscription.is_over:
            self._subscriptions.remove(subscription)

    def ended(self, subscription: Subscription) -> None:
        name = subscription.feed.spec.topic
        self._write_event(sse_frames.topic_deleted(name, subscription.head_seq))
        self._subscriptions.remove(subscription)

    # -- writing -------------------------------------------------------------------------------------------

    def _write_event(self, text: bytes) -> None:
        """Write an event with the current cursor of all topics as its id."""
        self._write(b"id: %b\n%b" % (self._token(), text))

    def _token(self) -> bytes:
        topics = self._topics
        has_new = topics.epochs != topics.first_epochs
        return cursor_token(topics.names, topics.seqs, topics.epochs if has_new else None)

    def _write_heartbeat(self, now_ms: int) -> None:
        text = sse_frames.heartbeat(now_ms)
        if self._is_filtered:
            text = b"%bid: %b\n\n" % (text[:-1], self._token())
        self._write(text)

    def _resume(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._limiter.resume_all(waiting)
        self._limiter.resume()

    # -- the end -------------------------------------------------------------------------------------------

    def _on_lagging(self, is_lagging: bool) -> None:
        self._on_lag(1 if is_lagging else -1)

    def _clean_up(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close()
        self._waiting.clear()
        self._on_end()


def rewind(topics: FollowedTopics, cursor: Mapping[str, tuple[int, int | None]]) -> None:
    """Move the cursor back to the client's cursor; never forward (V1)."""
    for index, name in enumerate(topics.names):
        if name in cursor:
            seq, epoch = cursor[name]
            client_epoch = topics.first_epochs[index] if epoch is None else epoch
            current_epoch = topics.epochs[index]
            # Epochs of a topic increase: a client with an older epoch is informed that the topic was created
            # again.
            if client_epoch < current_epoch or (client_epoch == current_epoch and seq < topics.seqs[index]):
                topics.seqs[index], topics.epochs[index] = seq, client_epoch
