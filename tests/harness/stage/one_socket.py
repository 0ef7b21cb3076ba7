"""One WebSocket session of a worker under the control of a test, without a socket.

Promises: the worker is that of `OneConnection`, with two shards, so requests for the other shard end in
`links.asked`, and the test answers them (`answer`). `take` returns the session's messages.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from shared.contract.api_keys import ApiKey
from shared.ipc.placement import Placement
from shared.ipc.remote_request import encode_answer
from tests.harness.stage.one_connection import SHARDS, OneConnection
from topicsd.http.websocket.session import WsSession
from topicsd.stream.feeds import Feeds
from topicsd.stream.remote_feed import RemoteShards


def texts_in(frames: bytes) -> list[Any]:
    """Return the messages of whole text frames."""
    messages, at = [], 0
    while at < len(frames):
        assert frames[at] == 0x81
        size = frames[at + 1]
        at += 2
        for mark, width in ((126, 2), (127, 8)):
            if size == mark:
                size, at = int.from_bytes(frames[at : at + width], "big"), at + width
                break
        messages.append(json.loads(frames[at : at + size]))
        at += size
    return messages


class RecordedWire:
    def __init__(self) -> None:
        self.is_paused = False
        self.written = b""
        self.resume_count = 0
        self.closed: list[tuple[int, str]] = []

    def write(self, frames: bytes) -> None:
        self.written += frames

    def resume(self) -> None:
        self.resume_count += 1

    def close(self, code: int, reason: str) -> None:
        self.closed.append((code, reason))


class OneSocket:
    def __init__(self, *, key: ApiKey | None = None, **settings: Any) -> None:
        worker = self.worker = OneConnection(**settings)
        one = worker.one
        ways = RemoteShards(
            worker.links, lambda shard: None, one.shard.state.wake_queue, one.loop, lambda number: number
        )
        self.feeds = Feeds(one.shard.state, one.loop, 0, Placement(SHARDS), ways)
        self.wire = RecordedWire()
        self.session = WsSession(self.wire, worker.dispatch, self.feeds, key)

    def say(self, op: str, **fields: Any) -> None:
        assert not self.session.is_busy
        self.session.receive(json.dumps({"op": op, **fields}).encode())

    def publish(self, topic: str, data: object = 1, **fields: Any) -> None:
        self.say("publish", topic=topic, records=[{"data": data}], **fields)

    def settle(self) -> list[Any]:
        """Run until idle; return the messages since the last call."""
        self.worker.settle()
        return self.take()

    def take(self) -> list[Any]:
        written, self.wire.written = self.wire.written, b""
        return texts_in(written)

    @property
    def request_count(self) -> int:
        """Return the number of requests to the other shard."""
        return len(self.worker.links.requests)

    def answer(self, number: int, body: object, status: int = 200, fields: bytes = b"") -> None:
        """Answer the request to the other shard with this index."""
        *_, done = self.worker.links.requests[number]
        done(encode_answer(status, fields, [json.dumps(body).encode()]))

    def answer_heads(self, number: int, *positions: list[int] | None) -> None:
        """Answer the request for positions with this index: head, earliest seq and epoch of each topic."""
        *_, done = self.worker.links.requests[number]
        done(msgspec.msgpack.encode(positions))

    def lose_answer(self, number: int) -> None:
        """Lose the other shard before it answers the request with this index."""
        *_, done = self.worker.links.requests[number]
        done(None)
