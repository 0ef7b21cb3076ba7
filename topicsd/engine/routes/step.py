"""One step of a route: copies are appended to the destination together with the route's new position.

The frame with the position contains the copies, or precedes them in the same batch, so neither exists without
the other: after any crash of the process or the machine, no record is copied twice or skipped.

    ForwardCursor(name, seq, n, references)               n records in this same log, by reference
    ForwardCursor(name, seq, n)   Append   Append   ...   n records from elsewhere, or changed
    ForwardCursor(name, seq, 0)   LostRange               records that the source lost before they were copied
    ForwardCursor(name, seq, n)                           n records that the receiver of a webhook accepted

So records of a source on this shard are written once, into however many topics they are copied.

The bounds and the schema of the destination apply as to every append. A refused step has changed nothing, and
can be retried with fewer records, or later.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from shared.contract.errors import Refusal, throttled
from topicsd.engine.pending import PendingControl, call_reply
from topicsd.engine.records.lost_range import LostRange
from topicsd.engine.replay import lose_range
from topicsd.engine.requests import AppendAnswer, Reply
from topicsd.engine.retention.eviction_log import evict_expired
from topicsd.engine.routes.copies import CopiedFrames
from topicsd.engine.routes.reference import References
from topicsd.engine.routes.route import RouteState, move_route
from topicsd.engine.state import ShardState
from topicsd.engine.write.append import PendingAppend, ReferringAppend, join_append, refuse_full
from topicsd.engine.write.schema_check import refuse_mismatch
from topicsd.engine.write.seq_ceiling import raise_ceiling, refuse_seqs
from topicsd.log import control_frame
from topicsd.log.control_frame import ControlPayload, ForwardCursor, encode_control

SKIPPED_MAX: Final = 1024
"""How many records a route may skip without a copy before its position is logged."""


def append_copies(
    shard: ShardState, route: RouteState, copies: CopiedFrames, to_seq: int, reply: Reply[AppendAnswer]
) -> None:
    """Append the copies, all or none, and move the route to `to_seq`."""
    topic = route.topic
    refusal = _refuse_if_ending(route) or _refuse_if_congested(shard)
    if refusal is not None:
        reply(refusal)
        return
    now_ms = shard.clock.now_ms()
    ts = max(now_ms, topic.last_ts)
    references = None if topic.is_ephemeral else copies.refer(shard, route)
    if references is None:
        encoded = copies.encode(topic.topic_id, topic.next_seq, ts, topic.is_durable)
        log_bytes = encoded[2]
    else:
        encoded = ([], references.lengths, references.size, copies.tags)
        log_bytes = references.log_bytes
    if topic.can_reject:
        refusal = refuse_full(shard, topic, len(copies), encoded[2])
    if topic.schema is not None and refusal is None:
        refusal = refuse_mismatch(shard, topic, topic.schema, copies.records)
    refusal = refusal or shard.log.admit(log_bytes)
    if refusal is not None:
        reply(refusal)
        return
    step = RouteStep(route, to_seq, len(copies), references)
    if references is None:
        pending = PendingAppend(shard, topic, encoded, ts, step, reply, False)
    else:
        pending = ReferringAppend(references.places, shard, topic, encoded, ts, step, reply, False)
    topic.last_ts = ts
    join_append(shard, topic, pending, now_ms)


def skip_records(shard: ShardState, route: RouteState, to_seq: int) -> None:
    """Move the route to `to_seq` without a copy: no record up to there matches.

    The position is logged only every `SKIPPED_MAX` records. After a restart that lost it, the same records
    are skipped again.
    """
    route.seq = max(route.seq, to_seq)
    if route.seq - route.logged_seq >= SKIPPED_MAX and _refuse_if_ending(route) is None:
        route.logged_seq = route.seq
        shard.log.join_control_frame(_cursor_frame(route, route.seq))


def note_delivered(shard: ShardState, route: RouteState, count: int, to_seq: int) -> Refusal | None:
    """Move a webhook to `to_seq`, after its receiver accepted `count` records.

    Return why the log accepts no frame now, or None.
    """
    refusal = _refuse_if_ending(route) or shard.log.admit_control()
    if refusal is None:
        move_route(route, to_seq, count)
        shard.log.join_control_frame(_cursor_frame(route, to_seq, count))
    return refusal


def append_lost_range(
    shard: ShardState, route: RouteState, count: int, reason: str, to_seq: int, reply: Reply[LostRange]
) -> None:
    """Add a lost range of `count` records to the destination, for those that the source lost."""
    topic = route.topic
    refusal = _refuse_if_ending(route) or refuse_seqs(shard, topic, count) or shard.log.admit_control()
    if refusal is not None:
        reply(refusal)
        return
    lost = LostRange(topic.next_seq, topic.next_seq + count - 1, reason)
    topic.next_seq += count
    topic.raised_head += count  # A lost range does not count in the topic's write rate.
    if topic.next_seq > topic.ceiling_mark:
        raise_ceiling(shard, topic, shard.clock.now_ms())
    frames = [_cursor_frame(route, to_seq)]
    if not topic.is_ephemeral:
        control = control_frame.LostRangeFrame(*lost)
        frames.append(encode_control(control, topic_id=topic.topic_id, ts=topic.last_ts))

    def publish() -> None:
        lose_range(topic, lost)
        move_route(route, to_seq, 0)
        if topic.waiters is not None:
            shard.wake_queue.wake(topic)
        call_reply(reply, lost)

    def undo() -> None:
        topic.next_seq = lost.first

    pending = PendingControl(topic, publish, reply, undo)
    waits = topic.is_durable or topic.next_seq > topic.ceiling + 1 or shard.must_wait(topic)
    if waits:
        pending.count_as_waiting()
    shard.log.join(frames, sum(map(len, frames)), len(frames), pending, waits)


def destination_is_full(shard: ShardState, route: RouteState) -> bool:
    """Return whether the destination is full and rejects writes instead of evicting."""
    topic = route.topic
    if not topic.can_reject or topic.config.discard != "reject":
        return False
    evict_expired(shard, topic, shard.clock.now_ms())
    config = topic.config
    return (0 < config.cap_records <= topic.live_count + topic.pending_count) or (
        0 < config.cap_bytes <= topic.live_bytes + topic.pending_bytes
    )


def _refuse_if_ending(route: RouteState) -> Refusal | None:
    """Refuse a step after the end of the route, or of its topic, has joined the log."""
    if route.is_gone or route.is_ending or route.topic.deferred_requests is not None:
        return throttled(f'route "{route.rule.name}" is being deleted')
    return None


def _refuse_if_congested(shard: ShardState) -> Refusal | None:
    """Refuse copies while much of the log waits for the disk.

    Copies are many times the appended records, and must not make appends wait for the disk.
    """
    if shard.log.is_background_throttled:
        return throttled("the commit queue is full")
    return None


def _cursor_frame(route: RouteState, seq: int, count: int = 0) -> bytes:
    topic = route.topic
    control = ForwardCursor(route.rule.name, seq, count)
    return encode_control(control, topic_id=topic.topic_id, ts=topic.last_ts, durable=topic.is_durable)


class RouteStep(NamedTuple):
    """The route, position and copies of one append."""

    route: RouteState
    seq: int
    copies: int
    references: References | None

    def on_join(self, pending: PendingAppend) -> ControlPayload:
        name, references = self.route.rule.name, self.references
        if references is None:
            return ForwardCursor(name, self.seq, self.copies)
        file, offsets, sizes = references[:3]
        return ForwardCursor(name, self.seq, self.copies, pending.first_seq, file, offsets, sizes)

    def on_commit(self, pending: PendingAppend) -> None:
        move_route(self.route, self.seq, self.copies)
        if self.references is not None:
            pending.shard.referred_bytes += self.references.size

    def on_abort(self, pending: PendingAppend) -> None:
        """Do nothing: the route has not moved."""
