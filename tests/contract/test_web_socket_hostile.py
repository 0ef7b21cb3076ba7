"""What no honest client of a WebSocket does: each ends in a close with its code, and memory stays bounded."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from tests.harness.clients.raw_client import RawClient, request_bytes
from tests.harness.clients.ws_client import BINARY, CLOSE, PING, PONG, TEXT, Closed, WsClient, masked
from tests.harness.server.http_server import HttpServer
from topicsd.http.websocket.connection import (
    EMPTY_FRAMES_MAX,
    PING_SECONDS,
    PONG_SECONDS,
    WebSocketConnection,
)
from topicsd.stream.event_stream import PAUSED_SECONDS_MAX

pytestmark = pytest.mark.http1

MESSAGE_BYTES_MAX = 64 << 10
FIN = 0x80
LAST_TEXT = FIN | TEXT
PING_MESSAGE = b'{"op":"ping"}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder = tmp_path_factory.mktemp("data")
    with HttpServer(folder, max_body_bytes=MESSAGE_BYTES_MAX, max_record_bytes=MESSAGE_BYTES_MAX) as running:
        yield running


@pytest.fixture
def socket(server: HttpServer, lane: str) -> Iterator[WsClient]:
    with WsClient(server.ports[lane]) as client:
        yield client


def _fits(size: int) -> bytes:
    return b'{"op":"ping","request_id":1%b}' % (b" " * (size - 29))


# What is sent, and the code that the close has.
VIOLATIONS: dict[str, tuple[bytes, int]] = {
    "a frame without a mask": (bytes([LAST_TEXT, 2]) + b"{}", 1002),
    "the first reserved bit": (masked(LAST_TEXT | 0x40, b"{}"), 1002),
    "the second reserved bit": (masked(LAST_TEXT | 0x20, b"{}"), 1002),
    "the third reserved bit": (masked(LAST_TEXT | 0x10, b"{}"), 1002),
    "a reserved opcode": (masked(FIN | 3, b"{}"), 1002),
    "a reserved opcode of control": (masked(FIN | 11, b""), 1002),
    "a fragment of nothing": (masked(FIN, b"{}"), 1002),
    "a message within a message": (masked(TEXT, b"{") + masked(LAST_TEXT, b"}"), 1002),
    "a ping in fragments": (masked(PING, b""), 1002),
    "a close in fragments": (masked(CLOSE, b""), 1002),
    "a long ping": (masked(FIN | PING, b"x" * 126), 1002),
    "a length that is longer than it need be": (
        struct.pack("!BBH", LAST_TEXT, FIN | 126, 2) + b"\0\0\0\0{}",
        1002,
    ),
    "a length with its sign": (struct.pack("!BBQ", LAST_TEXT, FIN | 127, 1 << 63) + b"\0\0\0\0", 1002),
    "a close of one byte": (masked(FIN | CLOSE, b"\x03"), 1002),
    "a close with a reserved code": (masked(FIN | CLOSE, (1005).to_bytes(2, "big")), 1002),
    "a close with a code that is none": (masked(FIN | CLOSE, (999).to_bytes(2, "big")), 1002),
    "a close with a reason that is no text": (masked(FIN | CLOSE, b"\x03\xe8\xff"), 1007),
    "bytes": (masked(FIN | BINARY, b"{}"), 1003),
    "no UTF-8": (masked(LAST_TEXT, b'"\xff"'), 1007),
    "half a character": (masked(LAST_TEXT, b'"\xc3'), 1007),
    "a surrogate": (masked(LAST_TEXT, b'"\xed\xa0\x80"'), 1007),
    "no UTF-8, over two fragments": (masked(TEXT, b'"\xc3') + masked(FIN, b'"'), 1007),
    "a large message, before it has come": (
        struct.pack("!BBQ", LAST_TEXT, FIN | 127, MESSAGE_BYTES_MAX + 1) + b"\0\0\0\0",
        1009,
    ),
    "a large message in fragments": (
        masked(TEXT, b"x" * MESSAGE_BYTES_MAX) + masked(0, b"") + masked(FIN, b"x"),
        1009,
    ),
    "an endless message": (struct.pack("!BBQ", LAST_TEXT, FIN | 127, (1 << 63) - 1) + b"\0\0\0\0", 1009),
    "a flood of pings": (masked(FIN | PING, b"") * (EMPTY_FRAMES_MAX + 1), 1008),
    "a flood of pongs": (masked(FIN | PONG, b"") * (EMPTY_FRAMES_MAX + 1), 1008),
    "a flood of empty fragments": (masked(TEXT, b"") + masked(0, b"") * (EMPTY_FRAMES_MAX + 1), 1008),
    "a request of HTTP": (request_bytes("GET", "/v0/health"), 1002),
}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("what", VIOLATIONS)
def test_what_is_no_websocket_is_closed_with_its_code(socket: WsClient, what: str, parts: int) -> None:
    sent, code = VIOLATIONS[what]
    message = masked(LAST_TEXT, b'{"op":"ping","request_id":1}')
    size = len(sent) // parts + 1
    socket.send(message)
    socket.send_in_parts(sent[at : at + size] for at in range(0, len(sent), size))
    assert socket.read() == {"op": "pong", "request_id": 1}
    socket.expect_close(code)


@pytest.mark.parametrize("what", VIOLATIONS)
def test_it_is_closed_too_when_it_comes_with_the_request(server: HttpServer, lane: str, what: str) -> None:
    sent, code = VIOLATIONS[what]
    with WsClient(server.ports[lane], behind=sent) as socket:
        socket.expect_close(code)


def test_what_is_legal_is_heard_however_it_is_cut(socket: WsClient) -> None:
    text = '{"op":"ping","request_id":"ä€😀"}'.encode()
    middle = text.index("€".encode()) + 1
    frames = [
        masked(LAST_TEXT, text),
        masked(TEXT, text[:middle]) + masked(FIN | PING, b"p" * 125) + masked(FIN, text[middle:]),
        masked(TEXT, b"") + masked(0, text) + masked(FIN, b""),
        masked(FIN | PONG, b"unsolicited"),
        masked(LAST_TEXT, text),
    ]
    socket.send_in_parts(bytes([byte]) for byte in b"".join(frames))
    for _ in range(4):
        assert socket.read() == {"op": "pong", "request_id": "ä€😀"}
    assert socket.pongs == [b"p" * 125]
    for size in (125, 126, 127, 65535, MESSAGE_BYTES_MAX):
        socket.send(masked(LAST_TEXT, _fits(size)))
        assert socket.read() == {"op": "pong", "request_id": 1}


def test_what_stands_behind_a_close_is_not_heard(socket: WsClient) -> None:
    publish = b'{"op":"publish","topic":"behind-a-close","records":[{"data":1}]}'
    socket.send(masked(FIN | CLOSE, (1000).to_bytes(2, "big")) + masked(LAST_TEXT, publish))
    assert socket.read() == Closed(1000, "")
    socket.read_end()


def test_nothing_of_a_socket_that_broke_is_done_behind_the_break(server: HttpServer, lane: str) -> None:
    publish = b'{"op":"publish","topic":"behind-a-break","records":[{"data":1}]}'
    with WsClient(server.ports[lane]) as socket:
        socket.send(masked(LAST_TEXT | 0x40, b"{}") + masked(LAST_TEXT, publish))
        socket.expect_close(1002)
    with RawClient(server.ports[lane]) as client:
        assert client.ask("GET", "/v0/topics/behind-a-break").status == 404


def test_a_client_that_never_reads_is_closed_at_last_and_costs_no_memory(
    server: HttpServer, lane: str
) -> None:
    name = f"unread-{lane}"
    with RawClient(server.ports[lane]) as writer, WsClient(server.ports[lane], buffer_bytes=4096) as socket:
        socket.ask("publish", topic=name, records=[{"data": 0}])
        socket.ask("subscribe", topic=name)
        body = b'{"records":[{"data":"%b"}]}' % (b"x" * (MESSAGE_BYTES_MAX - 100))
        for _ in range(200):
            assert writer.ask("POST", f"/v0/topics/{name}", body).status == 200
        (connection,) = _paused_connections(server)
        buffered = server.run(connection._transport.get_write_buffer_size)
        assert buffered <= (64 << 10) + 4 * (256 << 10)
        server.pass_timeout(PAUSED_SECONDS_MAX - 1)
        assert connection in server.connections
        server.pass_timeout(PAUSED_SECONDS_MAX + 1)
        message = socket.read()
        seqs: list[int] = []
        while message["op"] != "error":
            seqs += [record["$seq"] for record in message.get("records", ())]
            message = socket.read()
        assert seqs == list(range(1, len(seqs) + 1))
        assert message["code"] == "slow_consumer"
        assert message["cursors"][name]["from_seq"] == seqs[-1] < 201
        socket.expect_close(1013)


def _paused_connections(server: HttpServer) -> list[WebSocketConnection]:
    lanes = server.run(lambda: list(server.connections))
    return [one for one in lanes if isinstance(one, WebSocketConnection) and one.is_paused]


def test_a_client_that_reads_again_gets_the_backlog_in_larger_messages(server: HttpServer, lane: str) -> None:
    name = f"read-late-{lane}"
    with RawClient(server.ports[lane]) as writer, WsClient(server.ports[lane], buffer_bytes=4096) as socket:
        socket.ask("publish", topic=name, records=[{"data": 0}])
        socket.ask("subscribe", topic=name)
        body = b'{"records":[{"data":"%b"}]}' % (b"x" * (MESSAGE_BYTES_MAX // 4))
        count = 1000
        for _ in range(count):
            assert writer.ask("POST", f"/v0/topics/{name}", body).status == 200
        batches: list[list[int]] = []
        while not batches or batches[-1][-1] <= count:
            message = socket.read()
            if message["op"] == "record":
                batches.append([record["$seq"] for record in message["records"]])
        assert [seq for batch in batches for seq in batch] == list(range(1, count + 2))
        assert max(map(len, batches)) > 4


def test_publishes_of_a_client_that_does_not_read_wait_in_its_socket(server: HttpServer, lane: str) -> None:
    with WsClient(server.ports[lane], buffer_bytes=4096) as socket:
        socket.socket.settimeout(2)
        seqs = b",".join([b"%d" % number for number in range(500)])
        publish = b'{"op":"publish","topic":"asked-%b","records":[' % lane.encode()
        publish += b",".join([b'{"data":%b}' % one for one in seqs.split(b",")]) + b"]}"
        sent = masked(LAST_TEXT, publish)
        _send_until_reads_stop(socket, sent)
        (connection,) = _paused_connections(server)
        buffered = server.run(connection._transport.get_write_buffer_size)
        assert buffered < 1 << 20


def _send_until_reads_stop(socket: WsClient, sent: bytes) -> None:
    for _ in range(50_000):
        try:
            socket.send(sent)
        except TimeoutError:
            return
    raise AssertionError("the server reads on for ever")


def test_a_silent_client_is_pinged_and_one_that_is_gone_is_closed(server: HttpServer, lane: str) -> None:
    with WsClient(server.ports[lane]) as alive, WsClient(server.ports[lane]) as gone:
        assert alive.ask("ping") == gone.ask("ping")
        server.pass_timeout(PING_SECONDS - 1)
        server.pass_timeout(PING_SECONDS + 1)
        assert alive.read_frame() == (PING, b"")
        assert gone.read_frame() == (PING, b"")
        alive.send_frame(PONG)
        assert alive.ask("ping") == {"op": "pong"}
        server.pass_timeout(PING_SECONDS + PONG_SECONDS + 2)
        gone.expect_close(1008)
        assert alive.read_frame() == (PING, b"")


def test_a_message_that_does_not_come_through_is_closed(server: HttpServer, lane: str) -> None:
    with WsClient(server.ports[lane]) as socket:
        assert socket.ask("ping") == {"op": "pong"}
        socket.send(masked(LAST_TEXT, _fits(1000))[:500])
        assert _settled(server)
        server.pass_timeout(9)
        server.pass_timeout(15)
        socket.expect_close(1008)


def _settled(server: HttpServer) -> bool:
    """What was sent has been read."""
    with RawClient(server.ports["fast"]) as client:
        return client.ask("GET", "/v0/topics/settled").status == 404


def test_a_client_that_goes_without_a_word_is_forgotten(server: HttpServer, lane: str) -> None:
    name = f"left-{lane}"
    for leave in ("reset", "close", "send_end"):
        socket = WsClient(server.ports[lane])
        socket.ask("publish", topic=name, records=[{"data": 1}])
        socket.ask("subscribe", topic=name, tail=True)
        socket.expect("caught_up")
        getattr(socket, leave)()
        with RawClient(server.ports[lane]) as writer:
            path = f"/v0/topics/{name}"
            assert writer.ask("POST", path, b'{"records":[{"data":1}]}').status == 200
            for _ in range(1000):
                if not server.run(
                    lambda: [one for one in server.connections if isinstance(one, WebSocketConnection)]
                ):
                    break
            else:
                raise AssertionError(f"after {leave}: {server.connections}")
        socket.close()
    assert server.run(lambda: len(server.dispatch.streams.feeds._feeds)) == 0
