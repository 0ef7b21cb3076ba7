"""Cursors: named positions of readers, stored durably with the topic, and their lag.

A cursor is the last seq that its reader has processed, like `from_seq` of a read. The frames that set and
delete it have the class of the topic, and are in the log in the topic's order. A topic that protects its
cursors evicts nothing after the lowest cursor until it holds twice what its caps allow (`retention.py`).

The lag of a cursor is the number of live records after it, their bytes, and the age of the first of them.
Evicted and deleted records are not counted. Whole runs have totals; the run that contains the cursor needs
its index, which a thread reads if the run is a sealed segment. The number of records alone needs no index.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from shared.contract.errors import HEAD_MISMATCH, NOT_FOUND, Refusal, invalid, limit_reached
from shared.contract.names import refuse_cursor_name
from shared.text.message import quoted
from topicsd.engine.pending import PendingControl, call_reply
from topicsd.engine.read.seek import count_live
from topicsd.engine.records.run import Run
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.requests import Reply
from topicsd.engine.retention.eviction_log import evict_expired, evict_over_caps
from topicsd.engine.shard_data import ShardData
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import missing_topic
from topicsd.log.control_frame import Cursor
from topicsd.segment.entry import SegmentDamage

CURSORS: Final = "cursors"
"""The name of the section in a topic of a snapshot."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Cursor]).decode


class CursorPut(msgspec.Struct, frozen=True):
    """The answer to `put_cursor`."""

    cursor: Cursor
    created: bool


class CursorDeleted(msgspec.Struct, frozen=True):
    """The answer to `delete_cursor`."""

    name: str
    deleted: bool


def put_cursor(
    shard: ShardState,
    topic_name: str,
    name: str,
    from_seq: int,
    epoch: int | None,
    reply: Reply[CursorPut],
) -> None:
    """Set a cursor, forward or back; `reply` gets `CursorPut` or a `Refusal`."""
    topic = shard.topics.get(topic_name)
    if topic is not None and topic.deferred_requests is not None:
        retry = partial(put_cursor, shard, topic_name, name, from_seq, epoch, reply)
        shard.defer(topic, retry, reply)
        return
    if topic is None or not topic.visible:
        reply(missing_topic(shard, topic_name))
        return
    refusal = (
        refuse_cursor_name(name)
        or _refuse_position(topic, from_seq, epoch)
        or _refuse_count(shard, topic, name)
        or shard.log.admit_control()
    )
    if refusal is not None:
        reply(refusal)
        return
    cursor = Cursor(name, from_seq, shard.clock.now_ms(), is_gone=False)

    def publish() -> None:
        call_reply(reply, CursorPut(cursor, apply_cursor(shard, topic, cursor)))

    shard.join_control(topic, cursor, PendingControl(topic, publish, reply))


def delete_cursor(shard: ShardState, topic_name: str, name: str, reply: Reply[CursorDeleted]) -> None:
    """Delete a cursor, if it exists; `reply` gets `CursorDeleted` or a `Refusal`."""
    topic = shard.topics.get(topic_name)
    if topic is not None and topic.deferred_requests is not None:
        shard.defer(topic, partial(delete_cursor, shard, topic_name, name, reply), reply)
        return
    if topic is None or not topic.visible:
        reply(missing_topic(shard, topic_name))
        return
    refusal = refuse_cursor_name(name) or shard.log.admit_control()
    if refusal is not None:
        reply(refusal)
        return
    cursor = Cursor(name, 0, shard.clock.now_ms(), is_gone=True)

    def publish() -> None:
        call_reply(reply, CursorDeleted(name, apply_cursor(shard, topic, cursor)))

    shard.join_control(topic, cursor, PendingControl(topic, publish, reply))


def find_cursor(shard: ShardState, topic_name: str, name: str) -> Cursor | Refusal:
    topic = shard.visible_topic(topic_name)
    if topic is None:
        return missing_topic(shard, topic_name)
    cursor = topic.cursors.get(name)
    return cursor or Refusal(NOT_FOUND, f'topic "{topic_name}" has no cursor {quoted(name)}')


def apply_cursor(shard: ShardData, topic: Topic, cursor: Cursor) -> bool:
    """Apply a cursor frame; return whether it created or deleted a cursor."""
    before = topic.cursors.get(cursor.name)
    cursors = {**topic.cursors} if not topic.cursors else topic.cursors
    if cursor.is_gone:
        cursors.pop(cursor.name, None)
    else:
        cursors[cursor.name] = cursor
    topic.set_cursors(cursors)
    if topic.can_evict:
        evict_over_caps(shard, topic)
    return (before is None) != cursor.is_gone


def cursor_section(topic: Topic) -> dict[str, bytes]:
    """Return the snapshot section of the cursors."""
    return {CURSORS: _encode(list(topic.cursors.values()))} if topic.cursors else {}


def cursors_of(sections: dict[str, bytes]) -> dict[str, Cursor]:
    return {one.name: one for one in _decode(sections[CURSORS])} if CURSORS in sections else {}


def _refuse_position(topic: Topic, from_seq: int, epoch: int | None) -> Refusal | None:
    if from_seq < 0:
        return invalid("after_seq", f"must be at least 0, got {from_seq}")
    if from_seq > topic.head:
        message = f"after_seq: must be at most {topic.head}, the head of the topic, got {from_seq}"
    elif epoch not in (None, topic.epoch):
        message = f"epoch: the topic was deleted and created again, its epoch is {topic.epoch}, got {epoch}"
    else:
        return None
    return Refusal(HEAD_MISMATCH, message, {"head_seq": topic.head, "epoch": topic.epoch})


def _refuse_count(shard: ShardState, topic: Topic, name: str) -> Refusal | None:
    bound = shard.settings.max_cursors
    if not bound or name in topic.cursors or len(topic.cursors) < bound:
        return None
    return limit_reached("max_cursors", bound, f'topic "{topic.name}" cannot have more cursors')


logger = logging.getLogger("topicsd.engine")


class Lag(NamedTuple):
    """The live records after a cursor, their bytes, and the age of the first."""

    records: int
    bytes: int
    ms: int


NO_LAG = Lag(0, 0, 0)


def records_after(topic: Topic, seqs: Sequence[int]) -> list[int]:
    """Return the number of live records after each of the seqs, in one pass over the runs."""
    after_run = [0]
    for run in reversed(topic.runs):
        after_run.append(after_run[-1] + count_live(run, max(topic.earliest_seq, run.first_seq)))
    after_run.reverse()
    counts = []
    for seq in seqs:
        first = max(seq + 1, topic.earliest_seq)
        at = topic.run_index(first)
        in_run = (
            0 if at == len(topic.runs) else count_live(topic.runs[at], max(first, topic.runs[at].first_seq))
        )
        counts.append(in_run + after_run[min(at + 1, len(topic.runs))])
    return counts


def measure_lag(shard: ShardState, topic: Topic, seq: int, reply: Reply[Lag]) -> None:
    """Measure the lag of a position; `reply` gets a `Lag`, now or after a disk read."""
    evict_expired(shard, topic, shard.clock.now_ms())
    first = topic.next_live(seq + 1)
    run = topic.run_of(first)
    if first > topic.head or run is None:
        reply(NO_LAG)
    elif not isinstance(run, SealedRun):
        reply(_lag(shard, topic, run, first))
    else:

        def on_loaded(failure: SegmentDamage | OSError | None) -> None:
            if failure is not None:
                call_reply(reply, _lag_without_index(topic, run, failure))
            elif first < topic.earliest_seq or topic.run_of(first) is not run:
                measure_lag(shard, topic, seq, reply)
            else:
                call_reply(reply, _lag(shard, topic, run, first))

        shard.load_index(run, on_loaded)


def _lag(shard: ShardState, topic: Topic, run: Run, first: int) -> Lag:
    """Return the lag of a position whose first live record is `first`, in `run`.

    It subtracts the records before `first` from the totals of the topic, since earlier segments have totals
    without an index. In the last run it counts the shorter side.
    """
    ts = run.times_ms[first - run.first_seq]
    if run is topic.run and run.next_seq - first < first - run.first_seq:
        return _lag_of(shard, *run.live_totals(first, run.next_seq - 1), ts)
    low = max(topic.earliest_seq, run.first_seq)
    count, size = run.live_totals(low, first - 1) if low < first else (0, 0)
    for other in topic.runs:
        if other.next_seq <= run.first_seq:
            more, bytes_more = _totals(topic, other)
            count, size = count + more, size + bytes_more
    return _lag_of(shard, topic.live_count - count, topic.live_bytes - size, ts)


def _lag_of(shard: ShardState, count: int, size: int, ts: int) -> Lag:
    return Lag(count, size, max(0, shard.clock.now_ms() - ts)) if count else NO_LAG


def _totals(topic: Topic, run: Run) -> tuple[int, int]:
    if isinstance(run, SealedRun):
        return run.live_count, run.live_bytes
    low = max(topic.earliest_seq, run.first_seq)
    return run.live_totals(low, run.next_seq - 1) if low < run.next_seq else (0, 0)


def _lag_without_index(topic: Topic, run: SealedRun, error: Exception) -> Lag:
    """Return the lag as if the cursor were before the segment, whose index cannot be read."""
    logger.error('topic "%s": cursor lag is approximate, segment index unreadable: %s', topic.name, error)
    totals = [_totals(topic, other) for other in topic.runs if other.first_seq >= run.first_seq]
    return Lag(sum(count for count, _ in totals), sum(size for _, size in totals), 0)
