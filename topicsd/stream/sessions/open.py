"""Opening a stream on a session. It resumes from the session's cursor or from the client's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from shared.contract.errors import INVALID_REQUEST, UNAUTHORIZED, Refusal
from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.stream.cursor_token import read_token
from topicsd.stream.event_stream import KEY_REVOKED, SHUTTING_DOWN, TAKEN_OVER
from topicsd.stream.feeds import Feeds
from topicsd.stream.sessions.sessions import Session, Sessions
from topicsd.stream.sse_stream import SseStream, rewind
from topicsd.stream.stream import Stream

FIELDS: Final = b"content-type: text/event-stream\r\ncache-control: no-store\r\nx-accel-buffering: no\r\n"


class StreamRequest(Protocol):
    """The request that opens the stream."""

    def open_stream(self, fields: bytes) -> Stream: ...
    def refuse(self, refusal: Refusal) -> None: ...


class SessionStreams:
    """The session streams of one shard. `on_stream_end` is called with each session that lost its stream."""

    def __init__(
        self,
        sessions: Sessions,
        feeds: Feeds,
        loop: Loop,
        clock: Clock,
        on_stream_end: Callable[[Session], None],
    ) -> None:
        self._sessions = sessions
        self._feeds = feeds
        self._loop = loop
        self._clock = clock
        self._on_stream_end = on_stream_end
        self._streams: set[_SessionStream] = set()
        self.lagging_count = 0

    def open_session(self, session: Session, last_event_id: str, call: StreamRequest) -> None:
        """Open a stream on a session whose key and limits are already checked.

        If the stream opened, the session has it as `stream` on return.
        """
        refusal = _rewind(session, last_event_id) if last_event_id else None
        if refusal is not None:
            call.refuse(refusal)
            return
        stream = call.open_stream(FIELDS)
        session_stream = _SessionStream(session, self)
        # Attach before the stream begins: the previous stream stores its cursor as it ends.
        self._sessions.attach(session, session_stream)
        session.has_memory = True
        self._streams.add(session_stream)
        session_stream.begin(stream, self._feeds, self._loop, self._clock)

    def end_revoked(self, is_allowed: Callable[[Session], bool]) -> None:
        """End the streams of sessions whose keys were revoked."""
        for one in list(self._streams):
            if not is_allowed(one.session):
                one.sse.end(UNAUTHORIZED, KEY_REVOKED)

    def drain(self) -> None:
        for one in list(self._streams):
            one.sse.end(SHUTTING_DOWN, "the server is shutting down")

    def ended(self, session_stream: _SessionStream) -> None:
        self._streams.discard(session_stream)
        if self._sessions.detach(session_stream.session, session_stream):
            self._on_stream_end(session_stream.session)


class _SessionStream:
    __slots__ = ("_streams", "session", "sse")

    sse: SseStream

    def __init__(self, session: Session, streams: SessionStreams) -> None:
        self.session = session
        self._streams = streams

    def begin(self, stream: Stream, feeds: Feeds, loop: Loop, clock: Clock) -> None:
        session = self.session
        self.sse = SseStream(stream, feeds, loop, clock, session, session.definition.options, self)
        self.sse.begin()

    def end_taken_over(self) -> None:
        self.sse.end(TAKEN_OVER, "another stream took over this session")

    def ended(self) -> None:
        self._streams.ended(self)

    def set_lagging(self, is_lagging: bool) -> None:
        self._streams.lagging_count += 1 if is_lagging else -1


def _rewind(session: Session, last_event_id: str) -> Refusal | None:
    cursor = read_token(last_event_id, session.names)
    if cursor is None:
        message = "last-event-id: must be the id of an event of this session"
        return Refusal(INVALID_REQUEST, message, {"field": "last-event-id"})
    if session.has_memory:
        rewind(session, cursor)
        return None
    for index, name in enumerate(session.names):
        if name in cursor:
            session.seqs[index], epoch = cursor[name]
            session.epochs[index] = session.first_epochs[index] if epoch is None else epoch
    return None
