"""Named cursors: how far a reader of a topic has come, kept by the topic for it.

A cursor is the last seq that its reader is done with, as `from_seq` of a read. Its frame has the class of the
topic and stands in the log in the topic's order; so does its end. A topic that protects its cursors evicts
nothing behind the one that is the furthest back, until it holds twice what its caps allow (`retention.py`).

Must not know: HTTP, how far behind a cursor is.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from shared.errors import HEAD_MISMATCH, INVALID_REQUEST, NOT_FOUND, THROTTLED, Refusal
from shared.message_text import quoted
from shared.names import refuse_cursor_name
from topicsd.engine.requests import Reply
from topicsd.engine.shard_data import ShardData
from topicsd.engine.shard_state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import topic_not_found
from topicsd.engine.topic_entry import TopicEntry, tell
from topicsd.engine.trim_report import keep_to_caps
from topicsd.wal.control_frame import Cursor

CURSORS: Final = "cursors"
"""The section of a snapshot's topic."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Cursor]).decode


class CursorPut(msgspec.Struct, frozen=True):
    cursor: Cursor
    created: bool


class CursorDeleted(msgspec.Struct, frozen=True):
    name: str
    deleted: bool


def put_cursor(
    shard: ShardState, topic_name: str, name: str, from_seq: int, epoch: int | None, reply: Reply
) -> None:
    """Set it, forward or back; `reply` gets `CursorPut` or a `Refusal`."""
    topic = shard.topics.get(topic_name)
    if topic is not None and topic.leaving is not None:
        again = partial(put_cursor, shard, topic_name, name, from_seq, epoch, reply)
        shard.defer(topic, again, reply)
        return
    if topic is None or not topic.visible:
        reply(topic_not_found(topic_name))
        return
    refusal = (
        refuse_cursor_name(name)
        or _refuse_place(topic, from_seq, epoch)
        or _refuse_count(shard, topic, name)
        or shard.log.admit_control()
    )
    if refusal is not None:
        reply(refusal)
        return
    cursor = Cursor(name, from_seq, shard.clock.now_ms(), is_gone=False)
    shard.join_control(topic, cursor, PendingCursor(shard, topic, cursor, reply))


def delete_cursor(shard: ShardState, topic_name: str, name: str, reply: Reply) -> None:
    """`reply` gets `CursorDeleted` or a `Refusal`; one that is not there is deleted already."""
    topic = shard.topics.get(topic_name)
    if topic is not None and topic.leaving is not None:
        shard.defer(topic, partial(delete_cursor, shard, topic_name, name, reply), reply)
        return
    if topic is None or not topic.visible:
        reply(topic_not_found(topic_name))
        return
    refusal = refuse_cursor_name(name) or shard.log.admit_control()
    if refusal is not None:
        reply(refusal)
        return
    cursor = Cursor(name, 0, shard.clock.now_ms(), is_gone=True)
    shard.join_control(topic, cursor, PendingCursor(shard, topic, cursor, reply))


def find_cursor(shard: ShardState, topic_name: str, name: str) -> Cursor | Refusal:
    topic = shard.visible_topic(topic_name)
    if topic is None:
        return topic_not_found(topic_name)
    found = topic.cursors.get(name)
    return found or Refusal(NOT_FOUND, f'topic "{topic_name}" has no cursor {quoted(name)}')


def apply_cursor(shard: ShardData, topic: Topic, cursor: Cursor) -> bool:
    """What its frame says; whether that changed how many there are."""
    before = topic.cursors.get(cursor.name)
    cursors = {**topic.cursors} if not topic.cursors else topic.cursors
    if cursor.is_gone:
        cursors.pop(cursor.name, None)
    else:
        cursors[cursor.name] = cursor
    topic.set_cursors(cursors)
    if topic.evicts:
        keep_to_caps(shard, topic)
    return (before is None) != cursor.is_gone


def cursor_section(topic: Topic) -> dict[str, bytes]:
    """For a snapshot."""
    return {CURSORS: _encode(list(topic.cursors.values()))} if topic.cursors else {}


def cursors_of(sections: dict[str, bytes]) -> dict[str, Cursor]:
    return {one.name: one for one in _decode(sections[CURSORS])} if CURSORS in sections else {}


def _refuse_place(topic: Topic, from_seq: int, epoch: int | None) -> Refusal | None:
    if from_seq < 0:
        return Refusal(
            INVALID_REQUEST, f"after_seq: must be at least 0, got {from_seq}", {"field": "after_seq"}
        )
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
    message = f'topic "{topic.name}" has {bound} cursors, the most that TOPICS_MAX_CURSORS allows'
    return Refusal(THROTTLED, message, {"limit": "max_cursors", "max": bound}, retry_after_ms=1000)


class PendingCursor(TopicEntry):
    __slots__ = ("cursor", "reply", "shard")

    def __init__(self, shard: ShardState, topic: Topic, cursor: Cursor, reply: Reply) -> None:
        super().__init__(topic)
        self.shard = shard
        self.cursor = cursor
        self.reply = reply

    def publish(self) -> None:
        self.end_wait()
        cursor = self.cursor
        changed = apply_cursor(self.shard, self.topic, cursor)
        tell(
            self.reply, CursorDeleted(cursor.name, changed) if cursor.is_gone else CursorPut(cursor, changed)
        )

    def undo(self) -> None:
        self.end_wait()  # It is not set before its frame is where its class wants it.

    def refuse(self, refusal: Refusal) -> None:
        tell(self.reply, refusal)
