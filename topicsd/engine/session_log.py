"""Watch sessions in the log: their definitions, so that clients find them again after a restart.

The creation of a session is answered when its frame is written, as for a record of the class `disk`: the
session survives the process. The frame of its end is written the same way, but no request waits for it. Ids
of sessions are never reused, and the last frame of a session decides whether it exists; so replay may repeat
frames that the snapshot already has.
"""

from __future__ import annotations

import struct
import sys

import msgspec

from shared.contract.errors import Refusal
from topicsd.engine.checkpoint.snapshot_format import SnapshotHead
from topicsd.engine.pending import call_reply
from topicsd.engine.requests import Reply
from topicsd.engine.shard_data import ShardData
from topicsd.engine.state import ShardState
from topicsd.log.control_frame import SessionFrame, encode_control

WATCH_SESSIONS = "watch_sessions"
_ARRAY_32 = struct.Struct(">BI")
encode_session = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[SessionFrame]).decode


def log_session(shard: ShardState, session: SessionFrame, reply: Reply) -> None:
    """Log a new session; `reply` gets it once its frame is written, or a `Refusal`."""
    assert session.names
    frame = _encoded(shard, session)
    # `admit`, not `admit_control`: a new session must not use the reserve of a full disk.
    refusal = shard.log.admit(len(frame))
    if refusal is not None:
        reply(refusal)
        return
    shard.log.join([frame], len(frame), 1, PendingSession(shard, session, reply), shard.log.is_lagging)


def log_session_end(shard: ShardState, session: bytes) -> None:
    """Log the end of a session, which removes it when the frame is published.

    If a full disk has no room for the frame, the session exists again after the next start, and ends again.
    """
    shard.log.join_control_frame(_encoded(shard, SessionFrame(session)), PendingSessionEnd(shard, session))


def apply_session(shard: ShardData, session: SessionFrame) -> None:
    """Apply a session frame; intern the names, since many sessions have the same few topics."""
    if session.names:
        names = list(map(sys.intern, session.names))
        nodes = list(map(sys.intern, session.nodes))
        key_id = sys.intern(session.key_id)
        shared = msgspec.structs.replace(session, names=names, nodes=nodes, key_id=key_id)
        shard.watch_sessions[session.session] = shared
    else:
        shard.watch_sessions.pop(session.session, None)


def session_section(encoded: list[bytes]) -> dict[str, bytes]:
    """Return the snapshot section of the sessions with a published frame.

    The frames of pending sessions are after the point at which replay begins.
    """
    return {WATCH_SESSIONS: b"".join([_ARRAY_32.pack(0xDD, len(encoded)), *encoded])} if encoded else {}


def sessions_of(head: SnapshotHead) -> list[SessionFrame]:
    return _decode(head.sections[WATCH_SESSIONS]) if WATCH_SESSIONS in head.sections else []


def _encoded(shard: ShardState, session: SessionFrame) -> bytes:
    return encode_control(session, topic_id=0, ts=shard.clock.now_ms())


class PendingSessionEnd:
    """The end of a session, pending in the log.

    The session is removed on publication, so that no snapshot is ahead of the log.
    """

    __slots__ = ("_session", "_shard", "ordinal")

    ordinal: int

    def __init__(self, shard: ShardState, session: bytes) -> None:
        self._shard = shard
        self._session = session

    def publish(self) -> None:
        del self._shard.watch_sessions[self._session]

    def undo(self) -> None:
        """Do nothing: no state was changed before publication."""

    def refuse(self, refusal: Refusal) -> None:
        """Do nothing: no request waits for the end of a session."""


class PendingSession:
    """A new session, pending in the log."""

    __slots__ = ("_reply", "_session", "_shard", "ordinal")

    ordinal: int

    def __init__(self, shard: ShardState, session: SessionFrame, reply: Reply) -> None:
        self._shard = shard
        self._session = session
        self._reply = reply

    def publish(self) -> None:
        apply_session(self._shard, self._session)
        call_reply(self._reply, self._shard.watch_sessions[self._session.session])

    def undo(self) -> None:
        """Do nothing: no state was changed before publication."""

    def refuse(self, refusal: Refusal) -> None:
        call_reply(self._reply, refusal)
