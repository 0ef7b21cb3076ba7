"""One HTTP/1.1 connection of a worker under the control of a test, without a socket.

Promises: the server has two shards. This worker's shard is a `OneShard` with its manual clock and loop.
Requests for the other shard end in `links.asked`, and the test decides their outcome. `HOME` and `AWAY` are
topics of the one and the other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

from shared.contract.api_keys import parse_keys
from shared.contract.names import topic_id
from shared.ipc.board import Slot
from shared.ipc.link import Done, LinkCall, LinkPool
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import shard_of
from shared.ipc.shared_placement import SharedPlacement
from shared.runtime.body_memory import SharedBody
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.shard.one_shard import OneShard
from tests.harness.stage.recording_transport import RecordingTransport
from tests.harness.stage.small_board import SmallBoard
from topicsd.http.http1.connection import Http1Connection
from topicsd.http.http1.head_cache import HeadCache
from topicsd.http.http1.timeouts import Connection
from topicsd.service.dispatch import Dispatch
from topicsd.service.shards.peers import Peers

SHARDS = 2


def _topic_of(shard: int) -> str:
    return next(name for name in (f"t{n}" for n in count()) if shard_of(topic_id(name), SHARDS) == shard)


HOME = _topic_of(0)
AWAY = _topic_of(1)


class ManualLinks(LinkPool):
    """Links that only the test answers."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, LinkKind, bytes, Done]] = []
        self.calls: list[LinkCall] = []
        self.bodies: list[bytes | SharedBody] = []
        """The bodies that were sent separately; empty for a request without one."""

    def call(
        self, name: str, kind: LinkKind, payload: bytes, done: Done, body: bytes | SharedBody = b""
    ) -> LinkCall:
        self.requests.append((name, kind, payload, done))
        self.bodies.append(body)
        question = LinkCall(done)
        self.calls.append(question)
        return question


class OneConnection:
    def __init__(
        self,
        *,
        keys: str = "",
        peers: Peers | None = None,
        clock: ManualClock | None = None,
        here: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """Open a connection to the worker of the first of two shards, which has the topics `here` too."""
        self.one = OneShard(clock=clock, **settings)
        placement = SharedPlacement.fixed(SHARDS)
        placement.current = placement.current.changed(dict.fromkeys(here, 0))
        self.links = ManualLinks()
        self.connections: set[Connection] = set()
        self.dispatch = Dispatch(self.one.shard, parse_keys(keys), self.links, 0, placement, peers=peers)
        self.heads = HeadCache(self.dispatch)
        self.wire = RecordingTransport()
        self.connection = Http1Connection(self.dispatch, self.heads, self)
        self.connection.connection_made(self.wire)

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def receive(self, *requests: bytes) -> None:
        """Deliver the requests in one segment."""
        self.connection.data_received(b"".join(requests))

    def settle(self) -> None:
        self.one.settle()

    @property
    def pending_writes(self) -> int:
        """Return the number of writes in the log that are not answered yet."""
        topic = self.one.shard.state.topics.get(HOME)
        return 0 if topic is None else topic.pending_count


class Capped(OneConnection):
    """A connection of a worker that has a peer, with the board between them."""

    def __init__(self, keys: str = "", **settings: Any) -> None:
        clock = ManualClock()
        self.small = SmallBoard(SHARDS, clock)
        peers = Peers(self.small.board, clock, 0)
        super().__init__(keys=keys, peers=peers, clock=clock, **settings)

    @property
    def own_slot(self) -> Slot:
        return self.small.board.slot(0)

    @property
    def other_slot(self) -> Slot:
        return self.small.board.slot(1)

    def responses(self) -> list[tuple[int, Any]]:
        self.settle()
        answers = self.wire.take().split(b"HTTP/1.1 ")[1:]
        return [(int(one[:3]), json.loads(one.partition(b"\r\n\r\n")[2])) for one in answers]


def append(topic: str, data: int = 1, *fields: str) -> bytes:
    return request("POST", f"/v0/topics/{topic}", b'{"records":[{"data":%d}]}' % data, *fields)


def diff(topic: str, body: bytes = b"{}", *fields: str) -> bytes:
    return request("POST", f"/v0/topics/{topic}/diff", body, *fields)


def look(topic: str) -> bytes:
    return request("GET", f"/v0/topics/{topic}", b"")


def request(method: str, path: str, body: bytes, *fields: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: a", *fields]
    if body:
        lines += ["content-type: application/json", f"content-length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body
