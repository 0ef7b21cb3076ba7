"""The preface of HTTP/2 counts at the start of a connection only, and a connection that moves starts anew."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.http.http2_preface import PREFACE
from shared.ipc.link import NEVER_SENT
from tests.harness.one_lane import AWAY, OneLane, look
from topicsd.http.http1.affinity import LOOKED_AT


@pytest.mark.parametrize(("last", "moves"), [(look(AWAY), True), (PREFACE, False)])
def test_a_connection_does_not_move_with_what_would_be_a_preface_there(last: bytes, moves: bool) -> None:
    one = OneLane()
    moved: list[bytes] = []

    def move(transport: asyncio.Transport, data: bytes, shard: int) -> bool:
        moved.append(data)
        return True

    dispatch: Any = one.dispatch
    dispatch.move = move
    for _ in range(LOOKED_AT):
        one.receive(look(AWAY))
        one.links.asked.pop()[3](NEVER_SENT)
    one.one.clock.advance(2000)
    one.wire.take()
    one.receive(last)
    assert moved == ([last] if moves else [])
    if not moves:
        assert one.wire.written.startswith(b"HTTP/1.1 505 ")
