"""How long an HTTP/2 connection is kept when its client does not read."""

from __future__ import annotations

from hpack import Encoder

from shared.http.client_speed import CLIENT_TIMEOUT_SECONDS
from shared.http.http2_preface import PREFACE
from tests.harness.clients.h2_client import frame, request_headers
from tests.harness.stage.one_connection import HOME, OneConnection
from tests.harness.stage.recording_transport import RecordingTransport
from topicsd.http.http2.connection import STREAMS_TIMEOUT_SECONDS, Http2Connection
from topicsd.stream.event_stream import PAUSED_SECONDS_MAX


def paused_connection(path: str) -> tuple[OneConnection, Http2Connection, RecordingTransport]:
    """Return a connection with one request, whose client stopped reading."""
    stage = OneConnection()
    queue = b'{"type":"queue"}'
    stage.receive(
        b"PUT /v0/topics/%b HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n" % HOME.encode()
    )
    stage.receive(b"content-length: %d\r\n\r\n%b" % (len(queue), queue))
    stage.settle()
    wire = RecordingTransport()
    connection = Http2Connection(stage.dispatch, stage.heads, stage)
    connection.connection_made(wire)
    block = Encoder().encode(request_headers("GET", path))
    connection.data_received(PREFACE + frame(4, 0, 0) + frame(1, 5, 1, block))
    stage.settle()
    assert wire.take()
    connection.pause_writing()
    return stage, connection, wire


def test_a_connection_without_streams_is_aborted_after_the_client_timeout() -> None:
    stage, connection, wire = paused_connection(f"/v0/topics/{HOME}")
    now = stage.one.clock.monotonic()
    connection.check_timeouts(now + CLIENT_TIMEOUT_SECONDS - 1)
    assert not wire.is_aborted
    connection.check_timeouts(now + CLIENT_TIMEOUT_SECONDS + 1)
    assert wire.is_aborted


def test_a_connection_with_a_stream_is_kept_until_the_stream_times_out() -> None:
    stage, connection, wire = paused_connection(f"/v0/topics/{HOME}/work?node=a")
    now = stage.one.clock.monotonic()
    for seconds in (CLIENT_TIMEOUT_SECONDS + 1, PAUSED_SECONDS_MAX + 1):
        connection.check_timeouts(now + seconds)
        assert not wire.is_aborted
    connection.check_timeouts(now + STREAMS_TIMEOUT_SECONDS + 1)
    assert wire.is_aborted
