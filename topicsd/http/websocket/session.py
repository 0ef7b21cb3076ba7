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

import logging
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from shared.contract.api_keys import READ, WRITE, ApiKey
from shared.contract.errors import SHUTTING_DOWN, TOPIC_NOT_FOUND, UNAUTHORIZED, Refusal
from shared.contract.names import is_topic_pattern, refuse_topic_name
from shared.contract.reader_options import ReaderOptions
from shared.runtime.unexpected_error import refuse_unexpected_error
from topicsd.engine.jobs import BackgroundJob, operation
from topicsd.http.http1.connection import AHEAD_MAX
from topicsd.http.websocket import frames as ws_frames
from topicsd.http.websocket.call import FIELDS, WsCall, error_in
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
from topicsd.http.websocket.topic_words import TopicWords
from topicsd.service.dispatch import Dispatch
from topicsd.service.input.clamped import member
from topicsd.service.shards.topic_heads import HeadAnswer, TopicHead, TopicStart
from topicsd.service.watch.options import Position
from topicsd.service.watch.selection import refuse_uncovered_topics
from topicsd.stream.chunks import Chunk, FeedSpec
from topicsd.stream.event_stream import KEY_REVOKED, PAUSED_SECONDS_MAX, TOO_SLOW
from topicsd.stream.feeds import Feeds
from topicsd.stream.read_limiter import ReadLimiter
from topicsd.stream.subscription import Subscription

logger = logging.getLogger("topicsd.http")

UNEXPECTED_ERROR: Final = "unexpected error"
READ_ONLY: Final = frozenset({READ})
WRITE_ONLY: Final = frozenset({WRITE})


class MessageConnection(Protocol):
    """The connection that carries the messages."""

    @property
    def is_paused(self) -> bool:
        """Return whether written data has not left yet."""
        ...

    def write(self, frames: bytes) -> None: ...

    def resume(self) -> None:
        """Resume: pass waiting messages to the session."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Close the connection after what was written."""
        ...


def _starts_of(
    positions: Mapping[str, Position], heads: Mapping[str, HeadAnswer], *, is_waiting: bool
) -> dict[str, TopicStart] | Refusal:
    """Return where each topic is followed from. Refuse missing topics before wrong seqs."""
    for name in positions:
        answer = heads[name]
        refusal = refuse_topic_name(name) or (answer if isinstance(answer, Refusal) else None)
        if refusal is not None and not (is_waiting and refusal.code == TOPIC_NOT_FOUND):
            return refusal
    starts = {}
    for name, given in positions.items():
        head = heads[name]
        if not isinstance(head, TopicHead):
            continue
        start = head.start(name, given.requested, given.epoch)
        if isinstance(start, Refusal):
            return start
        starts[name] = start
    return starts


class WsSession:
    def __init__(
        self, connection: MessageConnection, dispatch: Dispatch, feeds: Feeds, key: ApiKey | None
    ) -> None:
        self._connection = connection
        self._dispatch = dispatch
        self._feeds = feeds
        self._key = key
        self._subscriptions: dict[str, Subscription] = {}
        self._words = TopicWords(
            dispatch.streams.finders,
            dispatch.handlers.settings.max_watch_topics,
            () if key is None else key.prefixes,
            self._on_topic,
        )
        self._matched: dict[str, str] = {}
        """The pattern of each topic that is followed because of one."""
        self._paused: list[Subscription] = []
        self._read_limiter = ReadLimiter(
            dispatch.handlers.loop, lambda: connection.is_paused, self._on_failure
        )
        self._publishing: set[WsCall] = set()
        self._waiting: tuple[Envelope, bytes] | None = None
        """The operation that starts when all operations in progress are answered."""
        self._is_subscribing = False
        """Whether a subscribe waits for the positions of its topics."""
        self._is_draining = False
        self._is_over = False

    # -- operations of the client --------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """Return whether no message is accepted now. `resume` of the connection resumes when that changes."""
        return (
            self._waiting is not None
            or self._is_subscribing
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
            self._connection.write(ws_frames.json_message(b"pong", self._pong(), envelope.request_id))
        elif self._publishing:
            self._waiting = (envelope, message)
        else:
            self._start(envelope, message)

    def _pong(self) -> dict[str, object]:
        """Return the cursors of subscriptions with a filter: they may be far after the last record sent."""
        filtered = [
            name for name, one in self._subscriptions.items() if one.feed.spec.options.match is not None
        ]
        return {"cursors": self._cursors(filtered)} if filtered else {}

    def _cursors(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return where subscriptions are, as a client may send it in `topics` to resume."""
        ones = ((name, self._subscriptions[name]) for name in names)
        return {
            name: {"from_seq": one.seq} if one.epoch is None else {"from_seq": one.seq, "epoch": one.epoch}
            for name, one in ones
        }

    def _start(self, envelope: Envelope, message: bytes) -> None:
        if envelope.op == SUBSCRIBE:
            job = self._subscribe(envelope.request_id, message)
            self._dispatch.handlers.shard.state.jobs.start_now(job, self._on_subscribed)
        elif envelope.op == UNSUBSCRIBE:
            self._unsubscribe(envelope.request_id, message)
        else:
            self._refuse(envelope.request_id, unknown_op(message))

    def _refuse(self, request_id: bytes, refusal: Refusal) -> None:
        self._connection.write(ws_frames.error_message(refusal, request_id))

    def _refuse_name(self, name: str, scopes: frozenset[str]) -> Refusal | None:
        return None if self._key is None else self._key.refusal(scopes, name)

    def _resume(self) -> None:
        """Start the waiting operation, end a drained session, or resume, after a response."""
        if self._is_over:
            return
        if not self._publishing and self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._start(*waiting)
        if self._is_draining and not self._publishing and not self._is_subscribing:
            self._end(SHUTTING_DOWN, "the server is shutting down", ws_frames.GOING_AWAY)
        elif not self.is_busy:
            self._connection.resume()

    # -- publishing ----------------------------------------------------------------------------------------

    def _publish(self, request_id: bytes, message: bytes) -> None:
        publish = read_publish(message, self._dispatch.handlers.settings)
        if isinstance(publish, Refusal):
            self._refuse(request_id, publish)
            return
        refusal = self._refuse_name(publish.topic, WRITE_ONLY)
        if refusal is not None:
            self._refuse(request_id, refusal)
            return
        query = "" if publish.return_seqs else "return_seqs=false"
        call = WsCall(
            publish.topic,
            query,
            FIELDS,
            message,
            self._dispatch.handlers.monotonic(),
            request_id=request_id,
            on_response=self._on_published,
        )
        self._publishing.add(call)
        self._dispatch.start_with_key(self._key, "publish", call)

    def _on_published(self, call: WsCall, status: int, body: bytes) -> None:
        self._publishing.discard(call)
        if self._is_over:
            return
        if status < 300:
            self._connection.write(ws_frames.message(b"ack", body, call.request_id))
        else:
            self._connection.write(ws_frames.message(b"error", error_in(body), call.request_id))
        if call.is_last:
            # An unexpected error ends the connection.
            self._on_failure()
        else:
            self._resume()

    # -- subscribing ---------------------------------------------------------------------------------------

    def _subscribe(self, request_id: bytes, message: bytes) -> BackgroundJob[None]:
        handlers = self._dispatch.handlers
        request = read_subscribe(message, handlers.settings, handlers.shard.state.clock)
        refusal = request if isinstance(request, Refusal) else self._refuse_topics(request.positions)
        if refusal is not None:
            self._refuse(request_id, refusal)
            return
        assert isinstance(request, Subscribe)
        self._is_subscribing = True
        starts = yield from self._find_starts(request)
        self._is_subscribing = False
        if self._is_over:
            return
        if isinstance(starts, Refusal):
            self._refuse(request_id, starts)
        else:
            self._begin_subscriptions(request, request_id, starts)
        self._resume()

    def _find_starts(self, request: Subscribe) -> BackgroundJob[dict[str, TopicStart] | Refusal]:
        """Return where to follow the topics that exist: those that are named, and those of the patterns."""
        patterns = [word for word in request.positions if is_topic_pattern(word)]
        names = {word: one for word, one in request.positions.items() if word not in patterns}
        find = self._dispatch.streams.topic_heads.find
        heads = yield from find({name: position.requested for name, position in names.items()})
        starts = _starts_of(names, heads, is_waiting=request.is_waiting)
        if isinstance(starts, Refusal) or not patterns:
            return starts
        finder = self._words.finder(patterns)
        listed: list[str] | Refusal = yield from operation(finder.find_existing)
        finder.close()
        if isinstance(listed, Refusal):
            return listed
        matched: dict[str, Position] = {}
        for pattern in patterns:
            selects = self._words.selection([pattern]).selects
            position = request.positions[pattern]
            matched.update((name, position) for name in listed if name not in names and selects(name))
        count = len(self._subscriptions.keys() | names.keys() | matched.keys())
        topics_max = self._dispatch.handlers.settings.max_watch_topics
        if count > topics_max:
            return too_many_topics(count, topics_max)
        heads = yield from find({name: position.requested for name, position in matched.items()})
        others = _starts_of(matched, heads, is_waiting=True)
        return others if isinstance(others, Refusal) else {**starts, **others}

    def _on_subscribed(self, outcome: Exception | None) -> None:
        if outcome is not None:
            refusal = refuse_unexpected_error(logger, "a WebSocket message", outcome)
            self._connection.close(ws_frames.INTERNAL_ERROR, refusal.message)

    def _refuse_topics(self, positions: dict[str, Position]) -> Refusal | None:
        topics_max = self._dispatch.handlers.settings.max_watch_topics
        count = len(self._subscriptions.keys() | positions.keys())
        if count > topics_max:
            return too_many_topics(count, topics_max)
        for word in positions:
            if not is_topic_pattern(word):
                refusal = self._refuse_name(word, READ_ONLY)
            else:
                refusal = self._refuse_name("", READ_ONLY)
                if refusal is None and self._key is not None:
                    refusal = refuse_uncovered_topics(self._words.selection([word]), self._key)
            if refusal is not None:
                return refusal
        return None

    def _begin_subscriptions(
        self, request: Subscribe, request_id: bytes, starts: dict[str, TopicStart]
    ) -> None:
        subscriptions = []
        for name, start in starts.items():
            self._drop(name)
            subscriptions.append(self._follow(name, start.seq, start.epoch, request.options))
        topics = {name: start.body for name, start in starts.items()}
        patterns = [word for word in request.positions if is_topic_pattern(word)]
        waiting = [word for word in request.positions if word not in patterns and word not in starts]
        body: dict[str, object] = {"topics": topics, **member(request.clamped)}
        if waiting:
            body["waiting"] = waiting
        if patterns:
            body["patterns"] = patterns
        self._connection.write(ws_frames.json_message(b"subscribed", body, request_id))
        self._read_limiter.resume_all(subscriptions)
        words = request.positions if request.is_waiting else patterns
        self._words.add(dict.fromkeys(words, request.options))
        for name in starts:
            word = self._words.word_of(name)
            if word is not None and word != name:
                self._matched[name] = word

    def _follow(self, name: str, seq: int, epoch: int | None, options: ReaderOptions) -> Subscription:
        feed = self._read_limiter.feed(self._feeds.feed(FeedSpec(name, options)))
        subscription = self._subscriptions[name] = Subscription(feed, seq, epoch, self)
        return subscription

    def _on_topic(self, name: str, word: str, options: ReaderOptions) -> None:
        """Follow a topic that was created, from its first record."""
        if self._is_over or name in self._subscriptions:
            return
        topics_max = self._dispatch.handlers.settings.max_watch_topics
        if len(self._subscriptions) >= topics_max:
            self._connection.write(ws_frames.json_message(b"topic_limit", {"max": topics_max}))
            self._words.remove_patterns()
            return
        self._connection.write(ws_frames.json_message(b"topic_found", {"topic": name}))
        if word != name:
            self._matched[name] = word
        self._read_limiter.resume_all([self._follow(name, 0, None, options)])

    def _unsubscribe(self, request_id: bytes, message: bytes) -> None:
        names = read_unsubscribe(message)
        if isinstance(names, Refusal):
            self._refuse(request_id, names)
        else:
            # With a pattern, the topics that are followed because of it.
            dropped = [*names, *(name for name, word in self._matched.items() if word in names)]
            removed = [name for name in dict.fromkeys(dropped) if self._drop(name)]
            self._words.remove(names)
            self._connection.write(ws_frames.json_message(b"unsubscribed", {"topics": removed}, request_id))

    def _drop(self, name: str) -> bool:
        self._matched.pop(name, None)
        subscription = self._subscriptions.pop(name, None)
        if subscription is not None:
            subscription.close()
        return subscription is not None

    # -- results of the subscriptions ----------------------------------------------------------------------

    @property
    def is_paused(self) -> bool:
        return self._connection.is_paused

    def hold(self, subscription: Subscription) -> None:
        self._paused.append(subscription)

    def deliver(self, subscription: Subscription, chunk: Chunk) -> None:
        frames = ws_frames.frames_of(chunk)
        if not subscription.has_reported_caught_up and chunk.is_at_head:
            subscription.has_reported_caught_up = True
            frames = frames or ws_frames.caught_up(chunk)
        if frames:
            self._connection.write(frames)

    def interrupted(self, subscription: Subscription, refusal: Refusal) -> None:
        name = subscription.feed.spec.topic
        if subscription.is_over:
            del self._subscriptions[name]
            self._matched.pop(name, None)
        self._connection.write(ws_frames.error_message(refusal, topics=[name]))

    def ended(self, subscription: Subscription) -> None:
        name = subscription.feed.spec.topic
        self._matched.pop(name, None)
        del self._subscriptions[name]
        self._connection.write(ws_frames.topic_deleted(name, subscription.head_seq))
        self._words.search_again(name)

    # -- calls of the connection ---------------------------------------------------------------------------

    def ready(self) -> None:
        """Resume the paused subscriptions when the connection accepts data again."""
        subscriptions, self._paused = self._paused, []
        self._read_limiter.resume_all(subscriptions)
        self._read_limiter.resume()

    def _on_failure(self) -> None:
        self._connection.close(ws_frames.INTERNAL_ERROR, UNEXPECTED_ERROR)

    def check_key(self) -> None:
        """End the session if its key was revoked. Called once a second."""
        if not self._is_over and not self._dispatch.keys.are_current(self._key):
            self._end(UNAUTHORIZED, KEY_REVOKED, ws_frames.POLICY)

    def too_slow(self) -> None:
        message = f"the client read nothing for {PAUSED_SECONDS_MAX:.0f} s"
        self._end(TOO_SLOW, message, ws_frames.TRY_AGAIN_LATER)

    def drain(self) -> None:
        """Finish the operations in progress, then end the session."""
        self._is_draining = True
        self._cancel_waits()
        self._resume()

    def lost(self) -> None:
        """Release everything when the connection is lost; operations in progress still complete."""
        if self._is_over:
            return
        self._is_over = True
        self._cancel_waits()
        self._words.close()
        subscriptions, self._subscriptions = self._subscriptions, {}
        for subscription in subscriptions.values():
            subscription.close()
        self._paused.clear()

    def _cancel_waits(self) -> None:
        for call in list(self._publishing):
            call.cancel()

    def _end(self, code: str, message: str, close_code: int) -> None:
        error = {"code": code, "message": message, "cursors": self._cursors(self._subscriptions)}
        self._connection.write(ws_frames.json_message(b"error", error))
        self._connection.close(close_code, message)
