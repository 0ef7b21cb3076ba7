"""A stream of server-sent events: the topics of one watch session, on one connection.

Each topic is followed by its own subscription. Chunks are written as they are found, with the cursor of
all topics as the id. There is no queue: while the client does not read, the subscriptions wait, and later
records are sent in larger chunks when it reads again.

V1  The session remembers what was written for each topic; `Last-Event-ID` only ever moves that back. A
    session that was restored has no such memory, and `Last-Event-ID` sets its cursor.
V2  Every event has a cursor to resume from, also the last event of a stream that ends (`event_stream.py`);
    the session is kept for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from shared.contract.errors import POSITION_PAST_HEAD, Refusal
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.stream import sse_frames
from topicsd.stream.chunks import Piece, Wanted
from topicsd.stream.cursor_token import cursor_token
from topicsd.stream.event_stream import EventStream
from topicsd.stream.feeds import Feeds
from topicsd.stream.read_limiter import AT_ONCE_MAX, Pace
from topicsd.stream.stream import Stream
from topicsd.stream.subscription import Subscription


class Following(Protocol):
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


class Keeper(Protocol):
    """The owner of a stream."""

    def ended(self) -> None:
        """Remove a stream that ended for any reason."""
        ...

    def lags(self, is_lagging: bool) -> None:
        """Count a stream that begins to lag, or that does not lag any more."""
        ...


class SseStream(EventStream):
    __slots__ = ("_following", "_held", "_is_plain", "_keeper", "_pace", "_subscriptions")
    _advice = "; come back with the last event id"

    def __init__(
        self,
        stream: Stream,
        feeds: Feeds,
        loop: Loop,
        clock: Clock,
        following: Following,
        wanted: Callable[[str], Wanted],
        keeper: Keeper,
    ) -> None:
        super().__init__(stream, loop, clock, following.heartbeat_ms)
        self._following = following
        self._keeper = keeper
        self._is_plain = len(following.names) == 1 and following.epochs == following.first_epochs
        """Whether the events of a chunk are the same as in other streams of this topic."""
        self._held: list[Subscription] = []
        self._pace = Pace(loop, lambda: stream.is_clogged, self._failed)
        followed = [feeds.feed(wanted(name)) for name in following.names]
        if len(followed) > AT_ONCE_MAX:
            followed = [self._pace.feed(feed) for feed in followed]
        self._subscriptions = [
            Subscription(feed, following.seqs[index], following.epochs[index], self, index)
            for index, feed in enumerate(followed)
        ]

    def begin(self) -> None:
        self._stream.write(sse_frames.OPENING)
        self._pace.go_on_with(self._subscriptions[:])

    def _failed(self) -> None:
        """Close the stream after an unexpected error; the session is free again.

        The response has begun, so its end is the only way to report the error.
        """
        if not self._is_over:
            self._close()

    # -- results of the subscriptions ----------------------------------------------------------------------

    @property
    def is_clogged(self) -> bool:
        return self._stream.is_clogged

    def hold(self, subscription: Subscription) -> None:
        self._lose_patience()
        self._held.append(subscription)

    def deliver(self, subscription: Subscription, piece: Piece) -> None:
        following, index = self._following, subscription.index
        is_new = not subscription.is_told_caught_up
        if piece.epoch != following.epochs[index]:
            following.epochs[index] = piece.epoch
            self._is_plain = False
        if is_new or not self._is_plain:
            self._tell(subscription, piece, is_new)
        elif not piece.is_empty:
            self._write(sse_frames.alone(piece))
        following.seqs[index] = piece.to_seq

    def _tell(self, subscription: Subscription, piece: Piece, is_new: bool) -> None:
        seqs, index = self._following.seqs, subscription.index
        events = sse_frames.events_of(piece)
        if is_new and piece.is_at_head:
            subscription.is_told_caught_up = True
            events = events or [(piece.to_seq, sse_frames.caught_up(piece))]
        for seq, text in events:
            seqs[index] = seq
            self._say(text)

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        name = subscription.feed.wanted.topic
        detail = refusal.detail if refusal.code == POSITION_PAST_HEAD else None
        self._say(sse_frames.error(refusal.code, refusal.message, [name], refusal.retry_after_ms, detail))
        if subscription.is_over:
            self._subscriptions.remove(subscription)

    def ended(self, subscription: Subscription) -> None:
        name = subscription.feed.wanted.topic
        self._say(sse_frames.topic_deleted(name, subscription.head_seq))
        self._subscriptions.remove(subscription)

    # -- writing -------------------------------------------------------------------------------------------

    def _say(self, text: bytes) -> None:
        """Write an event with the current cursor of all topics as its id."""
        following = self._following
        has_new = following.epochs != following.first_epochs
        token = cursor_token(following.names, following.seqs, following.epochs if has_new else None)
        self._write(b"id: %b\n%b" % (token, text))

    def _go_on_again(self) -> None:
        held, self._held = self._held, []
        self._pace.go_on_with(held)
        self._pace.go_on()

    # -- the end -------------------------------------------------------------------------------------------

    def _lags(self, is_lagging: bool) -> None:
        self._keeper.lags(is_lagging)

    def _ended(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            subscription.close()
        self._held.clear()
        self._keeper.ended()


def rewind(following: Following, cursor: Mapping[str, tuple[int, int | None]]) -> None:
    """Move the cursor back to the client's cursor; never forward (V1)."""
    for index, name in enumerate(following.names):
        if name in cursor:
            seq, epoch = cursor[name]
            told = following.first_epochs[index] if epoch is None else epoch
            here = following.epochs[index]
            # Epochs of a topic increase: a client with an older epoch is informed that the topic was created
            # again.
            if told < here or (told == here and seq < following.seqs[index]):
                following.seqs[index], following.epochs[index] = seq, told
