"""Watch sessions in the log: their definitions, so that clients find them again after a restart.

The creation of a session is answered when its frame is written, as for a record of the class `disk`: the
session survives the process. The frame of its end is written the same way, but no request waits for it. Ids
of sessions are never reused, and the last frame of a session decides whether it exists; so replay may repeat
frames that the snapshot already has.
"""

from __future__ import annotations

import struct
import sys
from functools import partial

import msgspec

from topicsd.engine.checkpoint.snapshot_format import SnapshotHead
from topicsd.engine.pending import PendingFrame, call_reply
from topicsd.engine.requests import Reply
from topicsd.engine.shard_data import ShardData
from topicsd.engine.state import ShardState
from topicsd.log.control_frame import SessionFrame, encode_control

WATCH_SESSIONS = "watch_sessions"
_ARRAY_32 = struct.Struct(">BI")
encode_session = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[SessionFrame]).decode


def log_session(shard: ShardState, session: SessionFrame, reply: Reply[SessionFrame]) -> None:
    """Log a new session; `reply` gets it once its frame is written, or a `Refusal`."""
    assert not session.is_end
    frame = _encoded(shard, session)
    # `admit`, not `admit_control`: a new session must not use the reserve of a full disk.
    refusal = shard.log.admit(len(frame))
    if refusal is not None:
        reply(refusal)
        return

    def publish() -> None:
        apply_session(shard, session)
        call_reply(reply, shard.watch_sessions[session.session])

    shard.log.join([frame], len(frame), 1, PendingFrame(None, publish, refuse=reply), shard.log.is_lagging)


def log_session_end(shard: ShardState, session: bytes) -> None:
    """Log the end of a session, and remove it when the frame is published: no snapshot is ahead of the log.

    If a full disk has no room for the frame, the session exists again after the next start, and ends again.
    """
    pending = PendingFrame(None, publish=partial(shard.watch_sessions.__delitem__, session))
    shard.log.join_control_frame(_encoded(shard, SessionFrame(session)), pending)


def apply_session(shard: ShardData, session: SessionFrame) -> None:
    """Apply a session frame; intern the names, since many sessions have the same few topics."""
    if not session.is_end:
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
