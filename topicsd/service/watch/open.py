"""The endpoint that opens a stream on a watch session: find it, check the key and the caps.

W1  Only the home shard finds a session. An id that this server did not make is unknown; an id of this server
    without a session belongs to an expired one.
W2  With keys, only the key that created a session opens it, and only while it covers all of its names.
W3  A stream is counted before it opens. A stream that replaces another inherits its permit.
"""

from __future__ import annotations

from typing import Final, Protocol

from shared.contract.api_keys import NAME_NOT_COVERED, ApiKey
from shared.contract.errors import FORBIDDEN, GONE, NOT_ACCEPTABLE, NOT_FOUND, SHUTTING_DOWN, Refusal
from shared.contract.watch_id import WatchIds
from topicsd.service.call import Call
from topicsd.service.shards.stream_permits import StreamPermits
from topicsd.stream.sessions.open import FIELDS, StreamRequest
from topicsd.stream.sessions.sessions import Session, Sessions

EVENT_STREAM: Final = ("text/event-stream", "text/*", "*/*")

OTHER_KEY: Final = Refusal(FORBIDDEN, "the watch session was created with another key; open it with that key")
NO_SESSION: Final = Refusal(NOT_FOUND, "unknown watch session; create one with POST /v0/watch")
EXPIRED: Final = Refusal(GONE, "the watch session has expired; create a new one with POST /v0/watch")
STOPPING: Final = Refusal(SHUTTING_DOWN, "the server is shutting down", retry_after_ms=1000)


class OpenSession(Protocol):
    def __call__(self, session: Session, last_event_id: str, call: StreamRequest) -> None:
        """Open a stream on the session or refuse; sets `session.stream` before it returns."""
        ...


class WatchOpener:
    def __init__(self, ids: WatchIds, sessions: Sessions, permits: StreamPermits) -> None:
        self._ids = ids
        self._sessions = sessions
        self._permits = permits
        self._key_ids: dict[Session, str] = {}
        """Key ids under which the streams of sessions are counted."""
        self.open_session: OpenSession
        self.is_draining = False
        """Whether new streams are refused."""

    def open(self, call: Call, key: ApiKey | None) -> None:
        session = self._session_for(call.name, key)
        if not isinstance(session, Refusal) and not accepts_events(call.fields.accept):
            session = Refusal(NOT_ACCEPTABLE, "accept: must allow text/event-stream")
        if isinstance(session, Refusal):
            call.refuse(session)
        elif call.is_head:
            call.send_parts([], 0, 200, FIELDS)
        elif self.is_draining:
            call.refuse(STOPPING)
        elif session.stream is not None:
            self._open(session, call)
        else:
            key_id = "" if key is None else key.id
            wait = _PermitWait(self, session, key_id, call)
            call.cancel_wait = wait.cancel
            self._permits.enter(key_id, wait.on_permit)

    def _session_for(self, wid: str, key: ApiKey | None) -> Session | Refusal:
        watch_id = self._ids.parse(wid)
        if watch_id is None:
            return NO_SESSION
        session = self._sessions.find(watch_id.session)
        if session is None:
            return EXPIRED
        if key is not None:
            if key.id != session.definition.key_id:
                return OTHER_KEY
            # The prefixes may have changed since the session was created.
            if not all(map(key.allows_name, session.names)):
                return NAME_NOT_COVERED
        return session

    def enter(self, session: Session, key_id: str, call: Call) -> None:
        """Open a stream that has its permit."""
        is_current = self._sessions.find(session.definition.session) is session
        if self.is_draining or not is_current:
            self._permits.leave(key_id)
            call.refuse(STOPPING if is_current else EXPIRED)
        elif session in self._key_ids:
            # Another stream opened while this one waited for its permit.
            self._permits.leave(key_id)
            self._open(session, call)
        else:
            self._key_ids[session] = key_id
            self._open(session, call)
            if session.stream is None:
                self.on_stream_end(session)

    def leave(self, key_id: str) -> None:
        """Return the permit of a stream whose request was cancelled."""
        self._permits.leave(key_id)

    def _open(self, session: Session, call: Call) -> None:
        try:
            self.open_session(session, call.fields.last_event_id, call)
        except Exception as error:
            call.fail("watch", error)

    def on_stream_end(self, session: Session) -> None:
        """Return the permit of a session whose stream has ended."""
        key_id = self._key_ids.pop(session, None)
        if key_id is not None:
            self._permits.leave(key_id)


class _PermitWait:
    """A request for a stream that waits for its permit."""

    def __init__(self, opener: WatchOpener, session: Session, key_id: str, call: Call) -> None:
        self._opener = opener
        self._session = session
        self._key_id = key_id
        self._call = call
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True
        self._call.cancel_wait = None
        self._call.refuse(STOPPING)

    def on_permit(self, refusal: Refusal | None) -> None:
        call = self._call
        call.cancel_wait = None
        if self._is_cancelled:
            if refusal is None:
                self._opener.leave(self._key_id)
        elif refusal is not None:
            call.refuse(refusal)
        else:
            self._opener.enter(self._session, self._key_id, call)


def accepts_events(accept: str) -> bool:
    """Return whether an `Accept` field allows event streams.

    >>> accepts_events(""), accepts_events("text/html, text/event-stream;q=0.5"), accepts_events("*/*")
    (True, True, True)
    >>> accepts_events("application/json"), accepts_events("*/*, text/event-stream; q=0")
    (False, False)
    """
    weights: dict[str, float] = {}
    for entry in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        weights[kind] = min((_weight(part[2:]) for part in parameters if part.startswith("q=")), default=1.0)
    # The most specific type decides.
    return next((weights[kind] > 0 for kind in EVENT_STREAM if kind in weights), not accept)


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
