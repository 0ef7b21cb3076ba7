"""A connection handed over just before the drain: the request that came with it is answered."""

from __future__ import annotations

import asyncio

from tests.harness.stage.one_connection import HOME, OneConnection, append
from tests.harness.stage.recording_transport import RecordingTransport
from topicsd.http.http1.connection import Http1Connection


def _output_of_drain(first: bytes) -> RecordingTransport:
    """Drain a connection before the loop delivers the bytes that were handed over; return its output."""
    stage = OneConnection()

    async def hand_over() -> RecordingTransport:
        wire = RecordingTransport()
        connection = Http1Connection(stage.dispatch, stage.heads, stage, first)
        connection.connection_made(wire)
        stage.dispatch.is_draining = True
        connection.drain()
        stage.settle()
        return wire

    return asyncio.run(hand_over())


def test_a_handed_over_request_is_answered_and_the_connection_closed() -> None:
    wire = _output_of_drain(append(HOME))
    assert wire.written.startswith(b"HTTP/1.1 201 ")
    assert b"connection: close\r\n" in wire.written
    assert wire.is_closed


def test_a_handed_over_partial_request_is_refused() -> None:
    wire = _output_of_drain(append(HOME)[:-1])
    assert wire.written.startswith(b"HTTP/1.1 503 ")
    assert b'"shutting_down"' in wire.written
    assert wire.has_ended_writing
