"""A stream on its own connection: what remains of it when the client disconnects."""

from __future__ import annotations

import time
from typing import Any

from tests.harness.stage.recording_transport import RecordingTransport
from topicsd.http.http1.stream import ConnectionStream
from topicsd.http.http1.timeouts import Connection


class GoneTransport(RecordingTransport):
    """A transport that behaves as that of uvloop after its connection is lost."""

    is_gone = False

    def write(self, data: Any) -> None:
        if self.is_gone:
            raise RuntimeError("the handler is closed")
        super().write(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self

    def setsockopt(self, level: int, name: int, value: int) -> None:
        pass

    def getsockopt(self, level: int, name: int, size: int) -> bytes:
        if self.is_gone:
            raise ValueError("negative file descriptor")
        return bytes(size)


class OpenStream:
    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self.wire = GoneTransport()
        self.stream = ConnectionStream(self.wire, self, time.monotonic, b"head")

    def opened(self, connection: Connection) -> None:
        self.connections.add(connection)

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)


def test_writes_after_the_client_disconnected_are_ignored() -> None:
    subject = OpenStream()
    lost: list[int] = []
    subject.stream.on_lost = lambda: lost.append(1)
    subject.stream.write(b"one")
    subject.wire.is_gone = True
    subject.stream.connection_lost(None)
    subject.stream.write(b"two")
    subject.stream.close()
    subject.stream.check_timeouts(time.monotonic())
    assert (lost, subject.wire.take(), subject.connections) == ([1], b"headone", set())


def test_a_connection_may_be_lost_while_its_buffer_drains() -> None:
    subject = OpenStream()
    subject.stream.close()
    subject.wire.is_gone = True
    subject.stream.check_timeouts(time.monotonic() + 1)
    assert subject.wire.is_closed
