"""A stream of names and patterns: of one request, or of a watch session that looks for topics.

Each topic is followed by its own subscription. A finder reports topics that did not exist at the start; their
records are delivered from the first one on.

T1  Every event has an id with the position in all topics, and so has a heartbeat: a client that received
    nothing but filtered records resumes after them.
T2  At most `topics_max` topics are followed. When there is no room for a topic that a pattern matches, the
    stream says so once, and looks for no more topics by patterns until one of its topics is deleted.
T3  A topic that was deleted is followed again when it is created again, if the stream waits for topics.
T4  A stream with a limit ends with the record that reaches it, and the id after it.
T5  A topic whose position is past its head is not followed any more, and keeps its position and its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from shared.contract.errors import CORRUPT_SEGMENT, POSITION_PAST_HEAD, RETRY_AFTER_MS, UNAUTHORIZED, Refusal
from shared.contract.reader_options import ReaderOptions
from shared.contract.tag_filter import TagFilter, TopicSelection
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.engine.damage import next_from_seq
from topicsd.stream import sse_frames
from topicsd.stream.chunks import Chunk, FeedSpec
from topicsd.stream.event_stream import KEY_REVOKED, SHUTTING_DOWN, EventStream
from topicsd.stream.feeds import Feeds
from topicsd.stream.read_limiter import ReadLimiter
from topicsd.stream.stream import Stream
from topicsd.stream.subscription import Subscription
from topicsd.stream.tail.stream_form import StreamForm
from topicsd.stream.tail.stream_id import StreamPosition, stream_id
from topicsd.stream.tail.topic_finder import TopicFinder, TopicFinders

FollowStart = tuple[int, int | None]
"""The seq after which a topic is followed, and its epoch if that is known."""
FROM_BEGINNING: Final[FollowStart] = (0, None)


class TopicStreamRequest(NamedTuple):
    """What a stream delivers, and how."""

    selection: TopicSelection
    options: ReaderOptions
    form: StreamForm
    heartbeat_ms: int
    is_waiting: bool
    """Whether topics that do not exist are waited for."""
    count_max: int | None
    """The number of records after which the stream ends, or None."""
    key_id: str


class TopicStreamStart(NamedTuple):
    """The topics of a stream that is about to begin."""

    starts: Mapping[str, FollowStart]
    """The topics that exist."""
    deleted: Mapping[str, int]
    """Topics that a client which resumes has read and that do not exist, with the last seq that it has."""
    finder: TopicFinder | None
    """Finds other topics. None when no topic is to be found yet."""
    waiting: Sequence[str] = ()
    """Names that do not exist yet."""
    are_all: bool = True
    """Whether there was room for all topics."""


class TopicStreams:
    """The streams of one process. `on_count_change` is called with +1 or -1."""

    def __init__(
        self,
        feeds: Feeds,
        finders: TopicFinders,
        loop: Loop,
        clock: Clock,
        topics_max: int,
        on_count_change: Callable[[int], None],
    ) -> None:
        self.feeds = feeds
        self.finders = finders
        self.loop = loop
        self.clock = clock
        self.topics_max = topics_max
        self.lagging_count = 0
        self._on_count_change = on_count_change
        self._streams: dict[TopicStream, None] = {}

    @property
    def count(self) -> int:
        return len(self._streams)

    def finder(self, selection: TopicSelection) -> TopicFinder:
        # One more than there is room for, which shows that there are too many.
        return self.finders.finder(selection, self.topics_max + 1)

    def open(
        self,
        request: TopicStreamRequest,
        stream: Stream,
        topics: TopicStreamStart,
        on_end: Callable[[], None],
    ) -> None:
        def remove() -> None:
            del self._streams[one]
            self._on_count_change(-1)
            on_end()

        one = TopicStream(self, request, stream, topics, remove)
        self._streams[one] = None
        self._on_count_change(1)
        one.begin(topics)

    def end_revoked(self, is_allowed: Callable[[str, Collection[str]], bool]) -> None:
        """End the streams whose keys were revoked; `is_allowed` gets the key id and the topics."""
        for one in list(self._streams):
            if not is_allowed(one.request.key_id, one.topics):
                one.end(UNAUTHORIZED, KEY_REVOKED)

    def drain(self) -> None:
        for one in list(self._streams):
            one.end(SHUTTING_DOWN, "the server is shutting down")


class TopicStream(EventStream):
    __slots__ = (
        "_finder",
        "_is_full",
        "_limiter",
        "_on_end",
        "_remaining",
        "_streams",
        "_subscriptions",
        "_waiting",
        "positions",
        "request",
    )
    _advice = "; reconnect with the last event id"

    def __init__(
        self,
        streams: TopicStreams,
        request: TopicStreamRequest,
        stream: Stream,
        topics: TopicStreamStart,
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(stream, streams.loop, streams.clock, request.heartbeat_ms)
        self.request = request
        self._streams = streams
        self._finder = topics.finder
        self._on_end = on_end
        self._remaining = request.count_max
        self._is_full = False
        self.positions: dict[str, StreamPosition] = {}
        """What was written of each topic. A topic without an entry is followed from its beginning."""
        self._subscriptions: dict[str, Subscription] = {}
        self._waiting: list[Subscription] = []
        self._limiter = ReadLimiter(streams.loop, lambda: stream.is_paused, self._on_failure)

    def begin(self, topics: TopicStreamStart) -> None:
        self._stream.write(self.request.form.opening)
        subscriptions = [self._follow(name, start) for name, start in topics.starts.items()]
        for name, seq in topics.deleted.items():
            self._write_deleted(name, seq)
        if topics.waiting:
            self._write_fields(b"waiting", {"topics": topics.waiting})
        elif not subscriptions:
            # The client has an id from the start: topics that are created from now on are new to it.
            self._write_heartbeat(self._clock.now_ms())
        if not topics.are_all:
            self._report_full()
        elif self._finder is not None:
            self._finder.follow(self._on_topics)
        self._limiter.resume_all(subscriptions)

    def _on_failure(self) -> None:
        """Close the stream after an unexpected error, which its end reports: the response has begun."""
        if not self._is_over:
            self._close()

    @property
    def topics(self) -> Collection[str]:
        """Return the names that the key must cover."""
        return {*self._subscriptions, *self.request.selection.required}

    # -- topics --------------------------------------------------------------------------------------------

    def _follow(self, name: str, start: FollowStart) -> Subscription:
        seq, epoch = start
        if epoch is not None:
            self.positions[name] = (seq, epoch)
        feed = self._limiter.feed(self._streams.feeds.feed(FeedSpec(name, self.request.options)))
        one = self._subscriptions[name] = Subscription(feed, seq, epoch, self)
        return one

    def _on_topics(self, names: Collection[str]) -> None:
        """Follow topics that were found, as far as there is room (T2)."""
        new = [name for name in names if name not in self._subscriptions]
        # Topics that the client named have a place: their number is checked when the stream is opened.
        named = self.request.selection.filter.tags
        reserved = len(named - self._subscriptions.keys())
        room = self._streams.topics_max - len(self._subscriptions) - reserved
        subscriptions = []
        for name in new:
            if name not in named:
                if room <= 0 or self._is_full:
                    self._report_full()
                    continue
                room -= 1
            subscriptions.append(self._follow(name, FROM_BEGINNING))
        self._limiter.resume_all(subscriptions)

    def _report_full(self) -> None:
        if self._is_full:
            return
        self._is_full = True
        self._write_fields(b"topic-limit", {"max": self._streams.topics_max})
        if not self._is_over:
            selection = self.request.selection
            self._find(TopicSelection(TagFilter(selection.filter.tags), selection.within))

    def _find(self, selection: TopicSelection) -> None:
        """Look for these topics from now on, instead of others."""
        if self._finder is not None:
            self._finder.close()
        self._finder = None
        if selection.filter.tags or selection.has_patterns:
            self._finder = self._streams.finder(selection)
            self._finder.follow(self._on_topics)
            self._finder.begin()

    # -- results of the subscriptions ----------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        return self._stream.is_paused

    def hold(self, subscription: Subscription) -> None:
        self._start_slow_timer()
        self._waiting.append(subscription)

    def deliver(self, subscription: Subscription, chunk: Chunk) -> None:
        form, remaining = self.request.form, self._remaining
        name, is_last = chunk.topic, remaining is not None and chunk.count >= remaining
        if is_last and chunk.count > (remaining or 0):
            chunk = chunk.cut(remaining or 0)
        is_first = not subscription.has_reported_caught_up and chunk.is_at_head
        subscription.has_reported_caught_up |= is_first
        texts = []
        for seq, text in form.render(chunk, is_first):
            self.positions[name] = (seq, chunk.epoch)
            texts.append(form.with_id(text, stream_id(self.positions)))
        self.positions[name] = (chunk.to_seq, chunk.epoch)
        if texts:
            self._write(b"".join(texts))
        if remaining is not None:
            self._remaining = remaining - chunk.count
        if is_last:
            self._finish("limit")

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        name = subscription.feed.spec.topic
        is_damage = refusal.code == CORRUPT_SEGMENT
        detail = refusal.detail if is_damage or refusal.code == POSITION_PAST_HEAD else None
        if is_damage and subscription.epoch is not None:
            self.positions[name] = (next_from_seq(refusal), subscription.epoch)
        fields = sse_frames.error_fields(
            refusal.code, refusal.message, [name], refusal.retry_after_ms, detail
        )
        self._write_fields(b"error", fields)
        if subscription.is_over:
            self._end_without_topics()

    def ended(self, subscription: Subscription) -> None:
        name = subscription.feed.spec.topic
        del self._subscriptions[name]
        self.positions.pop(name, None)
        self._write_deleted(name, subscription.head_seq)
        if self._is_over:
            return
        if not self.request.is_waiting:
            self._end_without_topics()
        elif self._finder is None or self._is_full:
            # Also other topics than this one: there is room now.
            self._is_full = False
            self._find(self.request.selection)
        else:
            self._finder.search_again(name)

    def _end_without_topics(self) -> None:
        is_done = all(one.is_over for one in self._subscriptions.values())
        if is_done and self._finder is None and not self._is_over:
            self._finish("no-topics")

    # -- writing -------------------------------------------------------------------------------------------

    def _write_fields(self, name: bytes, fields: Mapping[str, object]) -> None:
        form = self.request.form
        text = form.event(name, sse_frames.encode_fields(fields))
        self._write(form.with_id(text, stream_id(self.positions)))

    def _write_deleted(self, name: str, seq: int) -> None:
        self._write_fields(b"topic-deleted", {"topic": name, "head_seq": seq, "reason": "deleted"})

    def _write_heartbeat(self, now_ms: int) -> None:
        self._write(self.request.form.heartbeat(now_ms, stream_id(self.positions)))

    def _write_error(self, code: str, message: str) -> None:
        self._write_fields(b"error", sse_frames.error_fields(code, message, None, RETRY_AFTER_MS))

    def _resume(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._limiter.resume_all(waiting)
        self._limiter.resume()

    # -- the end -------------------------------------------------------------------------------------------

    def _finish(self, reason: str) -> None:
        """End a stream that has delivered all that it will."""
        self._write_fields(b"end", {"reason": reason})
        self._close()

    def _on_lagging(self, is_lagging: bool) -> None:
        self._streams.lagging_count += 1 if is_lagging else -1

    def _clean_up(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, {}
        for subscription in subscriptions.values():
            subscription.close()
        self._waiting.clear()
        if self._finder is not None:
            self._finder.close()
        self._on_end()
