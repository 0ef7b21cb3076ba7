"""Handlers of the endpoints of named cursors."""

from __future__ import annotations

from collections.abc import Callable

from shared.contract.errors import Refusal
from topicsd.engine.read.cursors import (
    CursorDeleted,
    CursorPut,
    Lag,
    delete_cursor,
    find_cursor,
    measure_lag,
    put_cursor,
    records_after,
)
from topicsd.engine.retention.eviction_log import evict_expired
from topicsd.engine.state import ShardState
from topicsd.engine.topic_admin import missing_topic
from topicsd.log.control_frame import Cursor
from topicsd.service.call import Call, Performance, reply_of
from topicsd.service.input.bodies import decode_cursor
from topicsd.service.render import encode


class CursorHandlers:
    def __init__(self, shard: ShardState, performance: Performance) -> None:
        self._shard = shard
        self._performance = performance
        self.table: dict[str, Callable[[Call], None]] = {
            "put_cursor": self._put,
            "cursor_state": self._state,
            "delete_cursor": self._delete,
            "list_cursors": self._list,
        }

    def _put(self, call: Call) -> None:
        body = decode_cursor(call.body)
        if isinstance(body, Refusal):
            call.refuse(body)
            return

        def respond(answer: CursorPut) -> None:
            members = {"topic": call.name, **_cursor_members(answer.cursor), "created": answer.created}
            status = 201 if answer.created else 200
            call.send(encode({**members, "performance": self._performance(call)}), status)

        reply = reply_of(call, respond)
        put_cursor(self._shard, call.name, call.item, body.from_seq or 0, body.epoch, reply)

    def _state(self, call: Call) -> None:
        cursor = find_cursor(self._shard, call.name, call.item)
        if isinstance(cursor, Refusal):
            call.refuse(cursor)
            return
        topic = self._shard.topics[call.name]

        def respond(lag: Lag) -> None:
            body = {
                "topic": call.name,
                **_cursor_members(cursor),
                "epoch": topic.epoch,
                "head_seq": topic.head,
                "lag_records": lag.records,
                "lag_bytes": lag.bytes,
                "lag_ms": lag.ms,
                "performance": self._performance(call),
            }
            call.send(encode(body))

        measure_lag(self._shard, topic, cursor.from_seq, reply_of(call, respond))

    def _delete(self, call: Call) -> None:
        def respond(answer: CursorDeleted) -> None:
            body = {"topic": call.name, "cursor": answer.name, "deleted": answer.deleted}
            call.send(encode({**body, "performance": self._performance(call)}))

        delete_cursor(self._shard, call.name, call.item, reply_of(call, respond))

    def _list(self, call: Call) -> None:
        topic = self._shard.visible_topic(call.name)
        if topic is None:
            call.refuse(missing_topic(self._shard, call.name))
            return
        evict_expired(self._shard, topic, self._shard.clock.now_ms())
        cursors = [topic.cursors[name] for name in sorted(topic.cursors)]
        lags = records_after(topic, [cursor.from_seq for cursor in cursors])
        entries = [
            {**_cursor_members(cursor), "lag_records": lag} for cursor, lag in zip(cursors, lags, strict=True)
        ]
        body = {"topic": call.name, "head_seq": topic.head, "cursors": entries}
        call.send(encode({**body, "performance": self._performance(call)}))


def _cursor_members(cursor: Cursor) -> dict[str, object]:
    return {"cursor": cursor.name, "from_seq": cursor.from_seq, "set_ts": cursor.set_ms}
