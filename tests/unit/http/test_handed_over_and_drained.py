"""A connection that was handed over just before the end: what came along with it finds an answer."""

from __future__ import annotations

import asyncio

from tests.harness.one_lane import HOME, OneLane, append
from tests.harness.recording_transport import RecordingTransport
from topicsd.http.http1.connection import FastLane


def _drained(first: bytes) -> RecordingTransport:
    """A lane that is told of the end before the loop came to what was read of its connection."""
    one = OneLane()

    async def hand_over() -> RecordingTransport:
        wire = RecordingTransport()
        lane = FastLane(one.dispatch, one.heads, one, first)
        lane.connection_made(wire)
        one.dispatch.drains = True
        lane.drain()
        one.settle()
        return wire

    return asyncio.run(hand_over())


def test_a_request_that_came_along_is_answered_and_the_connection_closed() -> None:
    wire = _drained(append(HOME))
    assert wire.written.startswith(b"HTTP/1.1 201 ")
    assert b"connection: close\r\n" in wire.written
    assert wire.is_closed


def test_half_a_request_that_came_along_is_refused() -> None:
    wire = _drained(append(HOME)[:-1])
    assert wire.written.startswith(b"HTTP/1.1 503 ")
    assert b'"shutting_down"' in wire.written
    assert wire.has_ended_writing
