"""How long a connection of HTTP/2 is kept whose client does not read."""

from __future__ import annotations

from hpack import Encoder

from shared.http.http2_preface import PREFACE
from shared.http.pace import PATIENCE_SECONDS
from tests.harness.h2_client import frame, request_headers
from tests.harness.one_lane import HOME, OneLane
from tests.harness.recording_transport import RecordingTransport
from topicsd.http.http2.connection import STREAMS_PATIENCE_SECONDS, H2Lane
from topicsd.stream.event_stream import CLOGGED_SECONDS_MAX


def clogged_on(path: str) -> tuple[OneLane, H2Lane, RecordingTransport]:
    """A connection with one request, whose client stopped to read."""
    stage = OneLane()
    queue = b'{"type":"queue"}'
    stage.receive(
        b"PUT /v0/topics/%b HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n" % HOME.encode()
    )
    stage.receive(b"content-length: %d\r\n\r\n%b" % (len(queue), queue))
    stage.settle()
    wire = RecordingTransport()
    lane = H2Lane(stage.dispatch, stage.heads, stage)
    lane.connection_made(wire)
    block = Encoder().encode(request_headers("GET", path))
    lane.data_received(PREFACE + frame(4, 0, 0) + frame(1, 5, 1, block))
    stage.settle()
    assert wire.take()
    lane.pause_writing()
    return stage, lane, wire


def test_without_a_stream_it_is_given_up_after_the_usual_time() -> None:
    stage, lane, wire = clogged_on(f"/v0/topics/{HOME}")
    now = stage.one.clock.monotonic()
    lane.check_patience(now + PATIENCE_SECONDS - 1)
    assert not wire.is_aborted
    lane.check_patience(now + PATIENCE_SECONDS + 1)
    assert wire.is_aborted


def test_with_a_stream_it_is_kept_until_the_stream_would_have_ended() -> None:
    stage, lane, wire = clogged_on(f"/v0/topics/{HOME}/work?node=a")
    now = stage.one.clock.monotonic()
    for seconds in (PATIENCE_SECONDS + 1, CLOGGED_SECONDS_MAX + 1):
        lane.check_patience(now + seconds)
        assert not wire.is_aborted
    lane.check_patience(now + STREAMS_PATIENCE_SECONDS + 1)
    assert wire.is_aborted
