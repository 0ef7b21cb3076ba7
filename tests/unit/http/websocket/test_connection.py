"""A WebSocket connection without a socket: when it reads, and how it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tests.harness.clients.ws_client import TEXT, masked
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.stage.recording_transport import RecordingTransport
from topicsd.http.http1.timeouts import Connection, Lingering
from topicsd.http.websocket import frames as ws_frames
from topicsd.http.websocket.connection import WebSocketConnection
from topicsd.stream.event_stream import LAGGING_SECONDS, PAUSED_SECONDS_MAX

MESSAGE = masked(0x80 | TEXT, b"{}")


class Listener:
    """A session that records its messages and calls."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.calls: list[str] = []
        self.is_busy = False
        self.on_message: Callable[[], None] = lambda: None

    def receive(self, message: bytes) -> None:
        self.messages.append(message)
        self.on_message()

    def ready(self) -> None:
        self.calls.append("ready")

    def check_key(self) -> None:
        pass

    def too_slow(self) -> None:
        self.calls.append("too slow")

    def drain(self) -> None:
        self.calls.append("drain")

    def lost(self) -> None:
        self.calls.append("lost")


class OpenSocket:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.connections: set[Connection] = set()
        self.session = Listener()
        self.wire = RecordingTransport()
        self.ends = 0
        self.lagging = 0
        self.connection = self.new_connection()
        self.connection.connection_made(self.wire)
        assert self.wire.take() == b"head"

    def new_connection(self) -> WebSocketConnection:
        return WebSocketConnection(
            b"head", 1 << 16, self, self.clock.monotonic, lambda _: self.session, self.end, self.lag
        )

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def end(self) -> None:
        self.ends += 1

    def lag(self, change: int) -> None:
        self.lagging += change


def test_messages_wait_while_the_session_is_busy() -> None:
    subject = OpenSocket()
    session = subject.session

    def be_busy() -> None:
        session.is_busy = True

    session.on_message = be_busy
    subject.connection.data_received(MESSAGE * 3)
    assert (len(session.messages), subject.wire.is_reading_paused) == (1, True)
    session.is_busy = False
    subject.connection.resume()
    assert len(session.messages) == 2
    session.on_message = lambda: None
    session.is_busy = False
    subject.connection.resume()
    assert (len(session.messages), subject.wire.is_reading_paused) == (3, False)


def test_messages_of_a_paused_client_wait_until_it_times_out() -> None:
    subject = OpenSocket()
    subject.connection.pause_writing()
    subject.connection.data_received(MESSAGE)
    assert subject.session.messages == []
    subject.connection.check_timeouts(subject.clock.monotonic() + PAUSED_SECONDS_MAX - 1)
    assert subject.session.calls == []
    subject.connection.resume_writing()
    assert (subject.session.calls, len(subject.session.messages)) == (["ready"], 1)
    subject.connection.pause_writing()
    subject.connection.check_timeouts(subject.clock.monotonic() + PAUSED_SECONDS_MAX + 1)
    assert subject.session.calls == ["ready", "too slow"]


def test_a_client_that_has_not_read_for_a_while_lags_until_it_reads_or_ends() -> None:
    subject = OpenSocket()
    subject.connection.pause_writing()
    subject.connection.check_timeouts(subject.clock.monotonic() + LAGGING_SECONDS - 1)
    assert subject.lagging == 0
    for seconds in (1, 2):
        subject.connection.check_timeouts(subject.clock.monotonic() + LAGGING_SECONDS + seconds)
        assert subject.lagging == 1
    subject.connection.resume_writing()
    assert subject.lagging == 0
    subject.connection.pause_writing()
    subject.connection.check_timeouts(subject.clock.monotonic() + LAGGING_SECONDS + 1)
    subject.connection.connection_lost(None)
    assert subject.lagging == 0


def test_a_connection_ends_once_whichever_side_ends_it() -> None:
    subject = OpenSocket()
    subject.connection.close(1000, "enough")
    subject.connection.close(1001, "again")
    subject.connection.data_received(MESSAGE)
    subject.connection.write(b"more")
    subject.connection.connection_lost(None)
    assert subject.wire.take() == ws_frames.close_frame(1000, "enough")
    assert (subject.session.calls, subject.session.messages, subject.ends) == (["lost"], [], 1)
    assert isinstance(subject.wire.protocol, Lingering)
    assert subject.connections == {subject.wire.protocol}

    subject = OpenSocket()
    subject.connection.connection_lost(None)
    assert (subject.session.calls, subject.ends, subject.connections) == (["lost"], 1, set())


def test_a_connection_lost_before_it_began_ends_too() -> None:
    subject = OpenSocket()
    subject.new_connection().connection_lost(None)
    assert subject.ends == 1


def test_an_unexpected_error_ends_the_connection_with_the_id_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    subject = OpenSocket()

    def fail() -> None:
        raise ZeroDivisionError

    subject.session.on_message = fail
    with caplog.at_level(logging.ERROR, "topicsd.http"):
        subject.connection.data_received(MESSAGE * 2)
    assert len(subject.session.messages) == 1
    written = subject.wire.take()
    assert written[2:4] == ws_frames.INTERNAL_ERROR.to_bytes(2, "big")
    (logged,) = caplog.records
    assert str(logged.args[0]).encode() in written  # type: ignore[index]


def test_a_long_reason_is_truncated_between_characters() -> None:
    frame = ws_frames.close_frame(1008, "ä" * 100)
    assert frame[1] == 2 + 122
    assert frame[4:].decode() == "ä" * 61
