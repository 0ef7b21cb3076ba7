"""The HTTP/2 preface counts only at the start of a connection, and a moved connection starts anew."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.http.http2_preface import PREFACE
from shared.ipc.link import NEVER_SENT
from tests.harness.one_connection import AWAY, OneConnection, look
from topicsd.http.http1.affinity import WINDOW_REQUESTS


@pytest.mark.parametrize(("last", "moves"), [(look(AWAY), True), (PREFACE, False)])
def test_a_connection_does_not_move_with_data_that_looks_like_a_preface(last: bytes, moves: bool) -> None:
    stage = OneConnection()
    moved: list[bytes] = []

    def move(transport: asyncio.Transport, data: bytes, shard: int) -> bool:
        moved.append(data)
        return True

    dispatch: Any = stage.dispatch
    dispatch.move = move
    for _ in range(WINDOW_REQUESTS):
        stage.receive(look(AWAY))
        stage.links.requests.pop()[3](NEVER_SENT)
    stage.one.clock.advance(2000)
    stage.wire.take()
    stage.receive(last)
    assert moved == ([last] if moves else [])
    if not moves:
        assert stage.wire.written.startswith(b"HTTP/1.1 505 ")
