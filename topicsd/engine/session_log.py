"""Watch sessions as the log keeps them: what was asked for, so that a client finds it again after a restart.

A session is answered when its frame is written, as a record of the class `disk`: it survives the process. So
is its end, which nobody waits for. Sessions have ids that are never given twice, and the last frame of one
says whether it is there; so it is no matter that replay repeats what a snapshot has.
"""

from __future__ import annotations

import struct
import sys

import msgspec

from shared.contract.errors import Refusal
from topicsd.engine.checkpoint.snapshot_format import SnapshotHead
from topicsd.engine.pending import tell
from topicsd.engine.requests import Reply
from topicsd.engine.shard_data import ShardData
from topicsd.engine.state import ShardState
from topicsd.log.control_frame import WatchSession, encode_control

WATCH_SESSIONS = "watch_sessions"
_ARRAY_32 = struct.Struct(">BI")
encode_session = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[WatchSession]).decode


def keep_session(shard: ShardState, session: WatchSession, reply: Reply) -> None:
    """Log a new session; `reply` gets it once it is kept, or a `Refusal`."""
    assert session.names
    frame = _encoded(shard, session)
    # Not of those frames for which the last room of a full disk is left.
    refusal = shard.log.admit(len(frame))
    if refusal is not None:
        reply(refusal)
        return
    shard.log.join([frame], len(frame), 1, PendingSession(shard, session, reply), shard.log.behind)


def drop_session(shard: ShardState, session: bytes) -> None:
    """It is gone once its frame is on the disk. Where that has no room for it the session comes back with the
    next start, and ends once more."""
    shard.log.join_in_passing(_encoded(shard, WatchSession(session)), PendingEnd(shard, session))


def apply_session(shard: ShardData, session: WatchSession) -> None:
    """What one of its frames says; many sessions are of the same few topics, whose names are shared."""
    if session.names:
        names = list(map(sys.intern, session.names))
        nodes = list(map(sys.intern, session.nodes))
        key_id = sys.intern(session.key_id)
        shared = msgspec.structs.replace(session, names=names, nodes=nodes, key_id=key_id)
        shard.watch_sessions[session.session] = shared
    else:
        shard.watch_sessions.pop(session.session, None)


def session_section(encoded: list[bytes]) -> dict[str, bytes]:
    """For a snapshot: those whose frames are written. What is on its way stands behind where replay
    begins."""
    return {WATCH_SESSIONS: b"".join([_ARRAY_32.pack(0xDD, len(encoded)), *encoded])} if encoded else {}


def sessions_of(head: SnapshotHead) -> list[WatchSession]:
    return _decode(head.sections[WATCH_SESSIONS]) if WATCH_SESSIONS in head.sections else []


def _encoded(shard: ShardState, session: WatchSession) -> bytes:
    return encode_control(session, topic_id=0, ts=shard.clock.now_ms())


class PendingEnd:
    """Until it is there a snapshot has the session: it may not know more than the log."""

    __slots__ = ("_session", "_shard", "ordinal")

    ordinal: int

    def __init__(self, shard: ShardState, session: bytes) -> None:
        self._shard = shard
        self._session = session

    def publish(self) -> None:
        del self._shard.watch_sessions[self._session]

    def undo(self) -> None:
        """Nothing was changed."""

    def refuse(self, refusal: Refusal) -> None:
        """Nobody waits for it."""


class PendingSession:
    __slots__ = ("_reply", "_session", "_shard", "ordinal")

    ordinal: int

    def __init__(self, shard: ShardState, session: WatchSession, reply: Reply) -> None:
        self._shard = shard
        self._session = session
        self._reply = reply

    def publish(self) -> None:
        apply_session(self._shard, self._session)
        tell(self._reply, self._shard.watch_sessions[self._session.session])

    def undo(self) -> None:
        """Nothing was changed."""

    def refuse(self, refusal: Refusal) -> None:
        tell(self._reply, refusal)
