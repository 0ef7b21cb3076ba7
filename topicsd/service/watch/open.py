"""The endpoint that opens a stream on a watch session: find it, check the key and the caps.

W1  Only the home shard finds a session. An id that this server did not make is unknown (404). An id of this
    server without a session has ended (410): the server keeps no list of ended sessions, and an id with its
    mark that it never gave out is answered in the same way. After both the client creates a session.
W2  With keys, only the key that created a session opens it, and only while it covers all of its names.
W3  A stream is counted before it opens. A stream that replaces another inherits its permit, so a permit
    belongs to a session, and is returned when the session has no stream.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from shared.contract.api_keys import NAME_NOT_COVERED, ApiKey
from shared.contract.errors import (
    FORBIDDEN,
    GONE,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    UNAUTHORIZED,
    Refusal,
    shutting_down,
)
from shared.contract.watch_id import WatchIds
from topicsd.engine.jobs import BackgroundJob, operation
from topicsd.engine.state import ShardState
from topicsd.service.call import Call, start_job
from topicsd.service.shards.limits import StreamPermits
from topicsd.service.watch.accept import accepts_events
from topicsd.stream.event_stream import FIELDS, KEY_REVOKED
from topicsd.stream.sessions import Session, Sessions
from topicsd.stream.tail.session_stream import SessionStreams

OTHER_KEY: Final = Refusal(FORBIDDEN, "the watch session was created with another key; open it with that key")
NO_SESSION: Final = Refusal(NOT_FOUND, "unknown watch session; create one with POST /v0/watch")
ENDED: Final = Refusal(GONE, "the watch session has ended; create a new one with POST /v0/watch")


class WatchOpener:
    """The opening of streams at their home shard.

    `is_allowed` says whether the key that created a session still exists and covers its topics.
    """

    def __init__(
        self,
        state: ShardState,
        ids: WatchIds,
        sessions: Sessions,
        session_streams: SessionStreams,
        permits: StreamPermits,
        is_allowed: Callable[[Session], bool],
    ) -> None:
        self._state = state
        self._ids = ids
        self._sessions = sessions
        self._session_streams = session_streams
        self._permits = permits
        self._is_allowed = is_allowed
        self._permitted: set[Session] = set()
        """Sessions whose stream has a permit."""
        self._is_draining = False

    def open(self, call: Call, key: ApiKey | None) -> None:
        start_job(self._state.jobs, "watch", call, self._open(call, key))

    def _open(self, call: Call, key: ApiKey | None) -> BackgroundJob[Refusal | None]:
        """Open a stream on a session.

        The job ends when the stream is open: it would keep the connection's state in memory.
        """
        session = self._session_for(call.name, key)
        if isinstance(session, Refusal):
            return session
        if not accepts_events(call.fields.accept):
            return Refusal(NOT_ACCEPTABLE, "accept: must allow text/event-stream")
        if call.is_head:
            call.send_parts([], 0, 200, FIELDS)
            return None
        if self._is_draining:
            return shutting_down()
        if session not in self._permitted:
            key_id = session.definition.key_id
            refusal: Refusal | None = yield from operation(partial(self._permits.enter, key_id, call))
            if refusal is not None:
                return refusal
            if session in self._permitted:
                # Another stream opened while this one waited for its permit.
                self._permits.leave(key_id)
            self._permitted.add(session)
        try:
            return self._refuse_now(session) or self._open_stream(session, call)
        finally:
            self._return_permit(session)

    def _open_stream(self, session: Session, call: Call) -> Refusal | None:
        last_id, open_stream = call.fields.last_event_id, partial(call.open_stream, FIELDS)
        if session.is_searching:
            return self._session_streams.open(session, last_id, open_stream, self._return_permit)
        refusal = session.set_cursor(last_id)
        if refusal is None:
            self._sessions.open_stream(session, open_stream(), self._return_permit)
        return refusal

    def _return_permit(self, session: Session) -> None:
        """Return the permit of a session that has no stream."""
        if session.stream is None and session in self._permitted:
            self._permitted.remove(session)
            self._permits.leave(session.definition.key_id)

    def _session_for(self, wid: str, key: ApiKey | None) -> Session | Refusal:
        watch_id = self._ids.parse(wid)
        if watch_id is None:
            return NO_SESSION
        # A session does not outlive its shard: one of a shard that was removed has ended.
        is_home = watch_id.shard == self._state.number
        session = self._sessions.find(watch_id.session) if is_home else None
        if session is None:
            return ENDED
        if key is not None:
            if key.id != session.definition.key_id:
                return OTHER_KEY
            # The prefixes may have changed since the session was created.
            if not all(map(key.allows_name, session.required)):
                return NAME_NOT_COVERED
        return session

    def _refuse_now(self, session: Session) -> Refusal | None:
        """Refuse a session that ended, whose key was revoked, or a drain, after the wait for a permit."""
        if self._sessions.find(session.definition.session) is not session:
            return ENDED
        if self._is_draining:
            return shutting_down()
        return None if self._is_allowed(session) else Refusal(UNAUTHORIZED, KEY_REVOKED)

    def drain(self) -> None:
        """Refuse new streams."""
        self._is_draining = True
