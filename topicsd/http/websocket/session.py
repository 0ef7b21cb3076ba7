"""The session of a WebSocket connection: its subscriptions and its operations in progress.

S1  Operations are executed like requests: by the same handlers, with the same caps, keys and refusals, and
    with remote requests if another shard owns the topic. The key's permission is checked for each
    operation.
S2  Consecutive publishes may be in progress together, at most `AHEAD_MAX`; any other operation starts when
    all earlier ones are answered, and messages after a subscribe wait until it is answered. So each
    operation sees the effects of those before it.
S3  A topic is followed once; a second subscribe to it continues from the new position.
S4  No queue is kept for a client that does not read: its subscriptions wait, except for the few reads in
    progress (`read_limiter.py`). If the server ends the connection, it first sends an error with the
    cursors to resume from.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import msgspec

from shared.contract.api_keys import READ, WRITE, Key
from shared.contract.errors import SHUTTING_DOWN, UNAUTHORIZED, Refusal
from topicsd.engine.read.position import followed_epoch, position_past_head
from topicsd.http.http1.connection import AHEAD_MAX
from topicsd.http.websocket import frames as ws_frames
from topicsd.http.websocket.call import FIELDS, Answered, WsCall, error_in
from topicsd.http.websocket.messages import (
    PING,
    PUBLISH,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Envelope,
    Subscribe,
    read_envelope,
    read_ping,
    read_publish,
    read_subscribe,
    read_unsubscribe,
    too_many_topics,
    unknown_op,
)
from topicsd.service.dispatch import Dispatch
from topicsd.service.input.clamped import member
from topicsd.service.watch.options import Place
from topicsd.stream.chunks import Piece, Wanted
from topicsd.stream.event_stream import CLOGGED_SECONDS_MAX, KEY_TAKEN_BACK, TOO_SLOW
from topicsd.stream.feeds import Feeds
from topicsd.stream.read_limiter import Pace
from topicsd.stream.subscription import Subscription

NOT_FORESEEN: Final = "unexpected error"
READ_ONLY: Final = frozenset({READ})
WRITE_ONLY: Final = frozenset({WRITE})


class Wire(Protocol):
    """The connection that carries the messages."""

    @property
    def is_clogged(self) -> bool:
        """Return whether written data has not left yet."""
        ...

    def write(self, frames: bytes) -> None: ...

    def go_on(self) -> None:
        """Resume: pass waiting messages to the session."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Close the connection after what was written."""
        ...


class _State(msgspec.Struct, gc=False):
    """The fields that are needed of a topic's state."""

    head_seq: int
    earliest_seq: int
    epoch: int
    from_seq: int | None = None
    """The seq that a seek found."""


_decode_state = msgspec.json.Decoder(_State).decode


class _Entering(NamedTuple):
    """A subscribe whose topics are not all looked up yet."""

    asked: Subscribe
    request_id: bytes
    found: dict[str, _State]
    errors: dict[str, bytes]


def _refuse_past_head(entering: _Entering) -> Refusal | None:
    """Refuse the first position past the head of its topic."""
    for name, place in entering.asked.places.items():
        state = entering.found[name]
        if place.epoch == state.epoch and (place.from_seq or 0) > state.head_seq:
            return position_past_head(name, place.from_seq or 0, state.head_seq, state.epoch)
    return None


class WsSession:
    def __init__(self, wire: Wire, dispatch: Dispatch, feeds: Feeds, key: Key | None) -> None:
        self._wire = wire
        self._dispatch = dispatch
        self._feeds = feeds
        self._key = key
        self._subscriptions: dict[str, Subscription] = {}
        self._held: list[Subscription] = []
        self._pace = Pace(dispatch.handlers.loop, lambda: wire.is_clogged, self._failed)
        self._publishing: set[WsCall] = set()
        self._waiting: tuple[Envelope, bytes] | None = None
        """The operation that starts when all operations in progress are answered."""
        self._entering: _Entering | None = None
        self._is_draining = False
        self._is_over = False

    # -- operations of the client --------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Return whether no message is accepted now. `Wire.go_on` is called when that changes."""
        return (
            self._waiting is not None
            or self._entering is not None
            or len(self._publishing) >= AHEAD_MAX
            or self._is_draining
        )

    def receive(self, message: bytes) -> None:
        envelope = read_envelope(message)
        if isinstance(envelope, Refusal):
            self._refuse(b"", envelope)
        elif envelope.op == PUBLISH:
            self._publish(envelope.request_id, message)
        elif envelope.op == PING and (refusal := read_ping(message)) is not None:
            self._refuse(envelope.request_id, refusal)
        elif envelope.op == PING:
            self._wire.write(ws_frames.message(b"pong", request_id=envelope.request_id))
        elif self._publishing:
            self._waiting = (envelope, message)
        else:
            self._start(envelope, message)

    def _start(self, envelope: Envelope, message: bytes) -> None:
        if envelope.op == SUBSCRIBE:
            self._subscribe(envelope.request_id, message)
        elif envelope.op == UNSUBSCRIBE:
            self._unsubscribe(envelope.request_id, message)
        else:
            self._refuse(envelope.request_id, unknown_op(message))

    def _refuse(self, request_id: bytes, refusal: Refusal) -> None:
        self._wire.write(ws_frames.refused(refusal, request_id))

    def _refuse_name(self, name: str, scopes: frozenset[str]) -> Refusal | None:
        return None if self._key is None else self._key.refusal(scopes, name)

    def _go_on(self) -> None:
        """Start the waiting operation, end a drained session, or resume, after a response."""
        if self._is_over:
            return
        if not self._publishing and self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._start(*waiting)
        if self._is_draining and not self._publishing and self._entering is None:
            self._end(SHUTTING_DOWN, "the server is shutting down", ws_frames.GOING_AWAY)
        elif not self.is_busy:
            self._wire.go_on()

    # -- publishing ----------------------------------------------------------------------------------------

    def _publish(self, request_id: bytes, message: bytes) -> None:
        asked = read_publish(message, self._dispatch.handlers.settings)
        if isinstance(asked, Refusal):
            self._refuse(request_id, asked)
            return
        refusal = self._refuse_name(asked.topic, WRITE_ONLY)
        if refusal is not None:
            self._refuse(request_id, refusal)
            return
        query = "" if asked.return_seqs else "return_seqs=false"
        call = self._call(asked.topic, query, message, request_id, self._published)
        self._publishing.add(call)
        self._dispatch.start_with_key(self._key, "publish", call)

    def _call(self, name: str, query: str, body: bytes, request_id: bytes, answered: Answered) -> WsCall:
        started = self._dispatch.handlers.monotonic()
        return WsCall(name, query, FIELDS, body, started, request_id=request_id, answered=answered)

    def _published(self, call: WsCall, status: int, body: bytes) -> None:
        self._publishing.discard(call)
        if self._is_over:
            return
        if status < 300:
            self._wire.write(ws_frames.message(b"ack", body, call.request_id))
        else:
            self._wire.write(ws_frames.message(b"error", error_in(body), call.request_id))
        if call.closes:
            # An unexpected error ends the connection.
            self._wire.close(ws_frames.INTERNAL_ERROR, NOT_FORESEEN)
        else:
            self._go_on()

    # -- subscribing ---------------------------------------------------------------------------------------

    def _subscribe(self, request_id: bytes, message: bytes) -> None:
        handlers = self._dispatch.handlers
        asked = read_subscribe(message, handlers.settings, handlers.shard.state.clock)
        refusal = asked if isinstance(asked, Refusal) else self._refuse_topics(asked.places)
        if refusal is not None:
            self._refuse(request_id, refusal)
            return
        assert isinstance(asked, Subscribe)
        self._entering = _Entering(asked, request_id, {}, {})
        # The owner of each topic knows its head.
        for name, place in asked.places.items():
            call = self._call(name, "touch=false" + place.query, b"", request_id, self._looked_up)
            self._dispatch.ask_owner("topic_state", call)

    def _refuse_topics(self, places: dict[str, Place]) -> Refusal | None:
        topics_max = self._dispatch.handlers.settings.max_watch_topics
        count = len(self._subscriptions.keys() | places.keys())
        if count > topics_max:
            return too_many_topics(count, topics_max)
        refusals = (self._refuse_name(name, READ_ONLY) for name in places)
        return next((refusal for refusal in refusals if refusal is not None), None)

    def _looked_up(self, call: WsCall, status: int, body: bytes) -> None:
        entering = self._entering
        if self._is_over or entering is None:
            return
        if status == 200:
            entering.found[call.name] = _decode_state(body)
        else:
            entering.errors[call.name] = error_in(body)
        if len(entering.found) + len(entering.errors) < len(entering.asked.places):
            return
        self._entering = None
        if entering.errors:
            # The first topic in the order of the request, so that the response is deterministic.
            error = next(entering.errors[name] for name in entering.asked.places if name in entering.errors)
            self._wire.write(ws_frames.message(b"error", error, entering.request_id))
        elif (refusal := _refuse_past_head(entering)) is not None:
            self._refuse(entering.request_id, refusal)
        else:
            self._enter(entering)
        self._go_on()

    def _enter(self, entering: _Entering) -> None:
        told, begun = {}, []
        for name, place in entering.asked.places.items():
            self._leave(name)
            state = entering.found[name]
            seq = state.head_seq if place.tail else state.from_seq or place.from_seq or 0
            epoch = followed_epoch(seq, place.epoch, state.head_seq, state.epoch)
            told[name] = {
                "from_seq": seq,
                "head_seq": state.head_seq,
                "earliest_seq": state.earliest_seq,
                "epoch": state.epoch,
            }
            feed = self._pace.feed(self._feeds.feed(Wanted.of(name, entering.asked)))
            subscription = self._subscriptions[name] = Subscription(feed, seq, epoch, self)
            begun.append(subscription)
        body = {"topics": told, **member(entering.asked.clamped)}
        self._wire.write(ws_frames.encoded(b"subscribed", body, entering.request_id))
        self._pace.go_on_with(begun)

    def _unsubscribe(self, request_id: bytes, message: bytes) -> None:
        names = read_unsubscribe(message)
        if isinstance(names, Refusal):
            self._refuse(request_id, names)
        else:
            left = [name for name in names if self._leave(name)]
            self._wire.write(ws_frames.encoded(b"unsubscribed", {"topics": left}, request_id))

    def _leave(self, name: str) -> bool:
        subscription = self._subscriptions.pop(name, None)
        if subscription is not None:
            subscription.close()
        return subscription is not None

    # -- results of the subscriptions ----------------------------------------------------------------------

    @property
    def is_clogged(self) -> bool:
        return self._wire.is_clogged

    def hold(self, subscription: Subscription) -> None:
        self._held.append(subscription)

    def deliver(self, subscription: Subscription, piece: Piece) -> None:
        frames = ws_frames.frames_of(piece)
        if not subscription.is_told_caught_up and piece.is_at_head:
            subscription.is_told_caught_up = True
            frames = frames or ws_frames.caught_up(piece)
        if frames:
            self._wire.write(frames)

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        name = subscription.feed.wanted.topic
        if subscription.is_over:
            del self._subscriptions[name]
        self._wire.write(ws_frames.refused(refusal, topics=[name]))

    def ended(self, subscription: Subscription) -> None:
        name = subscription.feed.wanted.topic
        del self._subscriptions[name]
        self._wire.write(ws_frames.topic_deleted(name, subscription.head_seq))

    # -- calls of the connection ---------------------------------------------------------------------------

    def ready(self) -> None:
        """Resume the held subscriptions when the connection accepts data again."""
        held, self._held = self._held, []
        self._pace.go_on_with(held)
        self._pace.go_on()

    def _failed(self) -> None:
        self._wire.close(ws_frames.INTERNAL_ERROR, NOT_FORESEEN)

    def check_key(self) -> None:
        """End the session if its key was revoked. Called once a second."""
        if not self._is_over and not self._dispatch.keys.are_current(self._key):
            self._end(UNAUTHORIZED, KEY_TAKEN_BACK, ws_frames.POLICY)

    def too_slow(self) -> None:
        message = f"the client read nothing for {CLOGGED_SECONDS_MAX:.0f} s"
        self._end(TOO_SLOW, message, ws_frames.TRY_AGAIN_LATER)

    def drain(self) -> None:
        """Finish the operations in progress, then end the session."""
        self._is_draining = True
        self._hurry()
        self._go_on()

    def lost(self) -> None:
        """Release everything when the connection is lost; operations in progress still complete."""
        if self._is_over:
            return
        self._is_over = True
        self._hurry()
        subscriptions, self._subscriptions = self._subscriptions, {}
        for subscription in subscriptions.values():
            subscription.close()
        self._held.clear()

    def _hurry(self) -> None:
        for call in list(self._publishing):
            if call.hurry is not None:
                call.hurry()

    def _end(self, code: str, message: str, close_code: int) -> None:
        cursors = {
            name: {"from_seq": one.seq} if one.epoch is None else {"from_seq": one.seq, "epoch": one.epoch}
            for name, one in self._subscriptions.items()
        }
        told = {"code": code, "message": message, "cursors": cursors}
        self._wire.write(ws_frames.encoded(b"error", told))
        self._wire.close(close_code, message)
