"""The sessions whose home is this shard: definition, cursor and current stream of each.

N1  A session without a stream ends after its idle time. One timer serves all sessions, which expire in the
    order in which they lost their streams.
N2  A session has at most one stream. A new stream takes over, and the previous stream is ended with an
    event that says so.
N3  The definition survives a restart (`engine/session_log.py`), the cursor does not: a session that was
    restored has no memory, and its idle time starts again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from shared.contract.errors import Refusal
from shared.runtime.disk_thread import Loop
from topicsd.engine.requests import Reply
from topicsd.engine.session_log import log_session, log_session_end
from topicsd.engine.state import ShardState
from topicsd.log import control_frame
from topicsd.stream.chunks import FeedSpec
from topicsd.stream.stream import noop

SESSION_TTL_SECONDS: Final = 300.0
# The number of sessions that end in one turn of the loop.
ENDED_PER_TURN_MAX: Final = 100

Definition = control_frame.SessionFrame


class AttachedStream(Protocol):
    """A stream that serves a session."""

    def end_taken_over(self) -> None:
        """End the stream, with an event that says that another stream took over."""
        ...


class Session:
    __slots__ = ("definition", "epochs", "has_memory", "idle_since", "seqs", "stream")

    def __init__(self, definition: Definition, has_memory: bool) -> None:
        self.definition = definition
        self.has_memory = has_memory
        """Whether `seqs` and `epochs`, in the order of the definition, say what was delivered."""
        self.seqs = list(definition.from_seqs)
        self.epochs = list(definition.epochs)
        self.stream: AttachedStream | None = None
        self.idle_since = 0.0

    @property
    def names(self) -> list[str]:
        return self.definition.names

    @property
    def first_epochs(self) -> list[int]:
        return self.definition.epochs

    @property
    def heartbeat_ms(self) -> int:
        return self.definition.heartbeat_ms

    def feed_spec(self, name: str) -> FeedSpec:
        return FeedSpec.of(name, self.definition)


class Sessions:
    def __init__(self, shard: ShardState, loop: Loop) -> None:
        self._shard = shard
        self._loop = loop
        self._sessions: dict[bytes, Session] = {}
        self._idle: OrderedDict[Session, None] = OrderedDict()
        """The session that was idle for the longest time is first."""
        self._has_timer = False
        self.stream_count = 0
        self.on_change: Callable[[], None] = noop
        """Called when the number of sessions or streams changes."""
        for definition in shard.watch_sessions.values():
            self._add(definition, has_memory=False)

    def __len__(self) -> int:
        return len(self._sessions)

    def find(self, session: bytes) -> Session | None:
        return self._sessions.get(session)

    def create(self, definition: Definition, reply: Reply[Session]) -> None:
        """Create a session. Call `reply` with it once it is stored, or with a `Refusal`."""

        def on_stored(answer: Definition | Refusal) -> None:
            reply(answer if isinstance(answer, Refusal) else self._add(answer, has_memory=True))

        log_session(self._shard, definition, on_stored)

    def _add(self, definition: Definition, has_memory: bool) -> Session:
        session = self._sessions[definition.session] = Session(definition, has_memory)
        self._set_idle(session)
        self.on_change()
        return session

    # -- streams -------------------------------------------------------------------------------------------

    def attach(self, session: Session, stream: AttachedStream) -> None:
        previous, session.stream = session.stream, stream
        if previous is None:
            del self._idle[session]
            self.stream_count += 1
            self.on_change()
        else:
            previous.end_taken_over()

    def detach(self, session: Session, stream: AttachedStream) -> bool:
        """Remove a stream that ended. Return whether it was still the session's stream."""
        if session.stream is not stream:
            return False
        session.stream = None
        self.stream_count -= 1
        self._set_idle(session)
        self.on_change()
        return True

    # -- idle times ----------------------------------------------------------------------------------------

    def _set_idle(self, session: Session) -> None:
        session.idle_since = self._shard.clock.monotonic()
        self._idle[session] = None
        self._start_timer()

    def _start_timer(self) -> None:
        if self._idle and not self._has_timer:
            self._has_timer = True
            due = next(iter(self._idle)).idle_since + SESSION_TTL_SECONDS
            self._loop.call_later(max(0.0, due - self._shard.clock.monotonic()), self._end_idle)

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
        self.on_change()
        self._start_timer()
