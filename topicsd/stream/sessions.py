"""The sessions whose home is this shard: definition, cursor and current stream of each.

N1  A session without a stream ends after its idle time. One timer serves all sessions, which expire in the
    order in which they lost their streams.
N2  A session has at most one stream. A new stream takes over, and the previous stream is ended with an
    event that says so. A stream resumes from the session's cursor or from the client's.
N3  The definition survives a restart (`engine/session_log.py`), the cursor does not: a session that was
    restored has no memory, and its idle time starts again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from shared.contract.errors import UNAUTHORIZED, Refusal, invalid
from topicsd.engine.requests import Reply
from topicsd.engine.session_log import log_session, log_session_end
from topicsd.engine.state import ShardState
from topicsd.log.control_frame import SessionFrame
from topicsd.stream.cursor_token import read_token
from topicsd.stream.event_stream import KEY_REVOKED, SHUTTING_DOWN, TAKEN_OVER
from topicsd.stream.feeds import Feeds
from topicsd.stream.sse_stream import SseStream, rewind
from topicsd.stream.stream import Stream

SESSION_TTL_SECONDS: Final = 300.0
# The number of sessions that end in one turn of the loop.
ENDED_PER_TURN_MAX: Final = 100


class AttachedStream(Protocol):
    """A stream that serves a session."""

    def end(self, code: str, message: str) -> None:
        """End the stream with an event that says why."""
        ...


class Session:
    __slots__ = ("definition", "epochs", "has_memory", "idle_since", "positions", "seqs", "stream")

    def __init__(self, definition: SessionFrame, has_memory: bool) -> None:
        self.definition = definition
        self.has_memory = has_memory
        """Whether the positions say what was delivered.

        They are `seqs` and `epochs`, in the order of the definition, or `positions`.
        """
        self.seqs = list(definition.from_seqs)
        self.epochs = list(definition.epochs)
        self.positions: dict[str, tuple[int, int]] = {}
        """Seq and epoch of each topic of a session that looks for topics (`tail/session_stream.py`)."""
        if self.is_searching:
            self.positions.update(
                zip(definition.names, zip(self.seqs, self.epochs, strict=True), strict=True)
            )
        self.stream: AttachedStream | None = None
        self.idle_since = 0.0

    @property
    def names(self) -> list[str]:
        return self.definition.names

    @property
    def is_searching(self) -> bool:
        """Return whether the session looks for topics, with a topic stream."""
        return self.definition.topic_filter is not None

    @property
    def required(self) -> list[str]:
        """Return the names that its key must cover."""
        selection = self.definition.selection
        return self.names if selection is None else [*self.names, *selection.required]

    @property
    def first_epochs(self) -> list[int]:
        return self.definition.epochs

    @property
    def heartbeat_ms(self) -> int:
        return self.definition.heartbeat_ms

    def set_cursor(self, last_event_id: str) -> Refusal | None:
        """Move the cursor to the client's, if it sent one, or refuse an id of another session."""
        if not last_event_id:
            return None
        cursor = read_token(last_event_id, self.names)
        if cursor is None:
            return invalid("last-event-id", "must be the id of an event of this session")
        if self.has_memory:
            rewind(self, cursor)
            return None
        for index, name in enumerate(self.names):
            if name in cursor:
                self.seqs[index], epoch = cursor[name]
                self.epochs[index] = self.first_epochs[index] if epoch is None else epoch
        return None


class Sessions:
    """The sessions of one shard; `on_change` is called when the number of sessions or streams changes."""

    def __init__(self, shard: ShardState, feeds: Feeds, on_change: Callable[[], object]) -> None:
        self._shard = shard
        self._feeds = feeds
        self._on_change = on_change
        self._sessions: dict[bytes, Session] = {}
        self._idle: OrderedDict[Session, None] = OrderedDict()
        """The session that was idle for the longest time is first."""
        self._has_timer = False
        self.stream_count = 0
        self.lagging_count = 0
        for definition in shard.watch_sessions.values():
            self._add(definition, has_memory=False)

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session: bytes) -> Session | None:
        return self._sessions.get(session)

    def create(self, definition: SessionFrame, reply: Reply[Session]) -> None:
        """Create a session. Call `reply` with it once it is stored, or with a `Refusal`."""

        def on_stored(answer: SessionFrame | Refusal) -> None:
            if isinstance(answer, Refusal):
                reply(answer)
                return
            session = self._add(answer, has_memory=True)
            self._on_change()
            reply(session)

        log_session(self._shard, definition, on_stored)

    def _add(self, definition: SessionFrame, has_memory: bool) -> Session:
        session = self._sessions[definition.session] = Session(definition, has_memory)
        self._set_idle(session)
        return session

    # -- streams -------------------------------------------------------------------------------------------

    def open_stream(self, session: Session, stream: Stream, on_end: Callable[[Session], object]) -> None:
        """Serve a session on a stream; `on_end` is called once the stream has ended."""
        loop, clock = self._shard.loop, self._shard.clock

        def detach() -> None:
            self.detach(session, sse)
            on_end(session)

        sse = SseStream(
            stream, self._feeds, loop, clock, session, session.definition.options, detach, self._count_lagging
        )
        self.attach(session, sse)
        session.has_memory = True
        sse.begin()

    def attach(self, session: Session, stream: AttachedStream) -> None:
        previous, session.stream = session.stream, stream
        if previous is None:
            del self._idle[session]
            self.stream_count += 1
            self._on_change()
        else:
            previous.end(TAKEN_OVER, "another stream took over this session")

    def detach(self, session: Session, stream: AttachedStream) -> None:
        """Remove a stream that ended, unless another one took over."""
        if session.stream is stream:
            session.stream = None
            self.stream_count -= 1
            self._set_idle(session)
            self._on_change()

    def _count_lagging(self, change: int) -> None:
        self.lagging_count += change

    def end_revoked(self, is_allowed: Callable[[Session], bool]) -> None:
        """End the streams of sessions whose keys were revoked."""
        for session in list(self._sessions.values()):
            if session.stream is not None and not is_allowed(session):
                session.stream.end(UNAUTHORIZED, KEY_REVOKED)

    def drain(self) -> None:
        """End all streams."""
        for session in list(self._sessions.values()):
            if session.stream is not None:
                session.stream.end(SHUTTING_DOWN, "the server is shutting down")

    # -- idle times ----------------------------------------------------------------------------------------

    def _set_idle(self, session: Session) -> None:
        session.idle_since = self._shard.clock.monotonic()
        self._idle[session] = None
        self._start_timer()

    def _start_timer(self) -> None:
        if self._idle and not self._has_timer:
            self._has_timer = True
            due = next(iter(self._idle)).idle_since + SESSION_TTL_SECONDS
            self._shard.loop.call_later(max(0.0, due - self._shard.clock.monotonic()), self._end_idle)

    def _end_idle(self) -> None:
        self._has_timer = False
        idle_before = self._shard.clock.monotonic() - SESSION_TTL_SECONDS
        for _ in range(min(len(self._idle), ENDED_PER_TURN_MAX)):
            session = next(iter(self._idle))
            if session.idle_since > idle_before:
                break
            del self._idle[session]
            session_id = session.definition.session
            del self._sessions[session_id]
            log_session_end(self._shard, session_id)
        self._on_change()
        self._start_timer()
