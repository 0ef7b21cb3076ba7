"""The order in which streams send, and when a stream is stuck."""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection

from tests.harness.clients.h2_client import request_headers
from topicsd.http.http2.frames import FRAME_BYTES_MAX
from topicsd.http.http2.sender import WRITE_BYTES, Outgoing, Sender
from topicsd.http.http2.wire import Wire

WINDOW = 65535


class Exchange:
    """A client and a server's sender, with three streams whose heads are sent."""

    def __init__(self) -> None:
        self.client = H2Connection(H2Configuration())
        self.client.initiate_connection()
        self.wire = Wire()
        for stream_id in (1, 3, 5):
            self.client.send_headers(stream_id, request_headers("GET", "/"), end_stream=True)
        self.wire.receive_data(self.client.data_to_send())
        for stream_id in (1, 3, 5):
            self.wire.send_headers(stream_id, [(b":status", b"200")])
        self.wire.data_to_send()
        self.sender = Sender[Outgoing](self.wire)
        self.on_sent: list[tuple[int, int]] = []

    def add(self, stream_id: int, size: int, ends: bool = True) -> Outgoing:
        one = Outgoing(stream_id)
        one.add(b"x" * size)
        one.is_ending = ends
        self.sender.wake(one)
        return one

    def fill(self, now: float = 0.0) -> list[tuple[int, int]]:
        self.on_sent.clear()
        self.sender.fill(now, lambda one, size: self.on_sent.append((one.id, size)))
        return list(self.on_sent)

    def open(self, stream_id: int | None, size: int) -> None:
        self.client.increment_flow_control_window(size, stream_id)
        self.wire.receive_data(self.client.data_to_send())
        self.sender.window_opened(stream_id or 0)


def test_streams_take_turns_of_one_frame() -> None:
    exchange = Exchange()
    exchange.add(1, 2 * FRAME_BYTES_MAX + 1)
    exchange.add(3, 10)
    exchange.add(5, FRAME_BYTES_MAX + 1)
    whole = FRAME_BYTES_MAX
    assert exchange.fill() == [(1, whole), (3, 10), (5, whole), (1, whole), (5, 1), (1, 1)]
    assert exchange.fill() == []


def test_one_fill_makes_at_most_one_write_of_frames() -> None:
    exchange = Exchange()
    exchange.open(None, 1 << 20)
    for stream_id in (1, 3):
        exchange.add(stream_id, WINDOW)
    sizes = [sum(size for _, size in exchange.fill()) for _ in range(3)]
    assert sizes == [WRITE_BYTES, WRITE_BYTES - 2, 0]


def test_a_full_stream_window_blocks_only_its_stream() -> None:
    exchange = Exchange()
    exchange.open(None, 1 << 20)
    exchange.add(1, WINDOW + 10)
    for _ in range(3):
        exchange.fill()
    exchange.add(3, 5)
    assert exchange.fill() == [(3, 5)]
    exchange.open(1, 4)
    assert exchange.fill() == [(1, 4)]
    exchange.open(None, 1000)
    assert exchange.fill() == []
    exchange.open(1, 1000)
    assert exchange.fill() == [(1, 6)]


def test_a_full_connection_window_blocks_all_streams_until_it_opens() -> None:
    exchange = Exchange()
    exchange.add(1, WINDOW)
    while exchange.fill():
        pass
    exchange.add(3, 5)
    exchange.add(5, 0)
    assert exchange.fill() == [(5, 0)]
    exchange.open(None, 1000)
    assert exchange.fill() == [(3, 5)]


def test_a_blocked_stream_is_stuck_after_a_time_unless_the_client_reads_fast_enough() -> None:
    exchange = Exchange()
    exchange.open(None, 1 << 20)
    slow, quick = exchange.add(1, WINDOW + 9000), exchange.add(3, WINDOW + 9000)
    for _ in range(5):
        exchange.fill(now=100.0)
    for now in (104.0, 108.0):
        exchange.open(1, 50)
        exchange.open(3, 600)
        assert exchange.fill(now) == [(1, 50), (3, 600)]
        assert not slow.is_stuck(now)
    assert (slow.is_stuck(110.5), quick.is_stuck(110.5)) == (True, False)
    assert quick.is_stuck(118.5)


def test_an_open_stream_is_not_stuck() -> None:
    exchange = Exchange()
    one = exchange.add(1, WINDOW + 1, ends=False)
    while exchange.fill():
        pass
    assert not one.is_stuck(1000.0)
    one.is_ending = True
    assert one.is_stuck(1000.0)


def test_a_stream_without_data_is_not_blocked() -> None:
    exchange = Exchange()
    one = exchange.add(1, 10, ends=False)
    assert exchange.fill() == [(1, 10)]
    assert (exchange.fill(), one.blocked_since) == ([], None)
    one.add(b"more")
    one.is_ending = True
    exchange.sender.wake(one)
    assert exchange.fill() == [(1, 4)]


def test_the_data_of_a_forgotten_stream_is_not_sent() -> None:
    exchange = Exchange()
    waiting, blocked = exchange.add(3, 10), exchange.add(1, 2 * WINDOW)
    exchange.sender.forget(waiting)
    while exchange.fill():
        assert 3 not in [stream_id for stream_id, _ in exchange.on_sent]
    exchange.sender.forget(blocked)
    exchange.open(None, 1000)
    assert (exchange.fill(), blocked.unsent, waiting.unsent) == ([], 0, 0)


def test_take_crosses_part_boundaries_and_parts_are_not_copied_before() -> None:
    one = Outgoing(1)
    buffer = bytearray(b"hello ")
    for part in (memoryview(buffer), b"", b"wor", b"ld"):
        one.add(part)
    buffer[0] = ord("H")
    assert one.unsent == 11
    assert [one.take(size) for size in (3, 5, 3)] == [b"Hel", b"lo wo", b"rld"]
    assert one.unsent == 0
