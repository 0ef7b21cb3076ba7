"""Answers that do not end, several on one connection of HTTP/2: a handler of the test's writes them."""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import pytest
from h2.errors import ErrorCodes

from tests.contract.test_http2 import RECORDS
from tests.harness.clients.event_client import H2Events
from tests.harness.clients.h2_client import H2Client
from tests.harness.server.http_server import H2, HttpServer
from tests.harness.server.processes import wait_until
from topicsd.http.http2.exchange import PAUSED_BYTES
from topicsd.service.call import Call
from topicsd.stream.stream import Stream

FIELDS = b"content-type: text/event-stream\r\ncache-control: no-store\r\n"


class Writer:
    """Takes the place of a handler. What it does to its streams it does in the server's loop."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self.streams: list[Stream] = []
        self.ready: list[int] = []
        self.lost: list[int] = []

    def start(self, call: Call) -> None:
        stream = call.open_stream(FIELDS)
        index = len(self.streams)
        stream.on_ready = lambda: self.ready.append(index)
        stream.on_lost = lambda: self.lost.append(index)
        self.streams.append(stream)

    def write(self, index: int, data: bytes) -> None:
        self._server.run(lambda: self.streams[index].write(data))

    def close(self, index: int) -> None:
        self._server.run(self.streams[index].close)

    def is_paused(self, index: int) -> bool:
        return self._server.run(lambda: self.streams[index].is_paused)


@pytest.fixture
def writer(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> Writer:
    one = Writer(server)
    monkeypatch.setattr(server.dispatch.handlers._table["topic_state"], "handle", one.start)
    return one


@pytest.fixture
def client(server: HttpServer) -> Iterator[H2Client]:
    with H2Client(server.ports[H2]) as one:
        yield one


def _follow(client: H2Client) -> int:
    stream_id = client.start("GET", "/v0/topics/t")
    while not client.has_head(stream_id):
        client.read_some()
    return stream_id


def _read(client: H2Client, stream_id: int, expected: bytes) -> None:
    while len(client.received(stream_id)) < len(expected):
        client.read_some()
    assert client.received(stream_id) == expected


def test_several_streams_say_what_they_say_and_end_beside_requests(writer: Writer, client: H2Client) -> None:
    first, second = _follow(client), _follow(client)
    for n in range(3):
        writer.write(0, b"data: %d\n\n" % n)
        writer.write(1, b": hb\n\n")
        _read(client, first, b"".join(b"data: %d\n\n" % m for m in range(n + 1)))
        assert client.ask("POST", "/v0/topics/t", RECORDS).status in (200, 201)
    writer.write(0, b"the final bytes")
    writer.close(0)
    answer = client.finish(first)
    assert answer.fields == {"content-type": "text/event-stream", "cache-control": "no-store"}
    assert answer.body.endswith(b"the final bytes")
    _read(client, second, b": hb\n\n" * 3)
    writer.write(1, b"and on")
    _read(client, second, b": hb\n\n" * 3 + b"and on")
    assert (writer.lost, writer.ready) == ([], [])
    client.reset(second)
    wait_until(lambda: writer.lost == [1])
    # A writer may write a moment longer.
    writer.write(1, b"discarded")
    writer.close(1)
    assert client.ask("GET", "/nothing").status == 404
    assert writer.lost == [1]


def test_a_stream_whose_window_is_used_up_is_paused_alone(server: HttpServer, writer: Writer) -> None:
    with H2Client(server.ports[H2], window=1000) as client:
        slow, quick = _follow(client), _follow(client)
        client.open_window(1 << 20, quick)
        client.open_window(1 << 20)
        writer.write(0, b"s" * PAUSED_BYTES)
        writer.write(0, b"s" * 1001)
        assert writer.is_paused(0)
        writer.write(1, b"q" * 50_000)
        _read(client, quick, b"q" * 50_000)
        _read(client, slow, b"s" * 1000)
        assert (writer.is_paused(1), writer.ready) == (False, [])
        # Who writes knows how long it waits; the lane lets it be.
        server.pass_timeout(100)
        assert writer.is_paused(0)
        client.open_window(40_000, slow)
        _read(client, slow, b"s" * 41_000)
        assert writer.ready == []
        client.open_window(20_000, slow)
        _read(client, slow, b"s" * 61_000)
        wait_until(lambda: writer.ready == [0])
        assert not writer.is_paused(0)
        assert writer.lost == []


def test_a_stream_that_is_closed_while_paused_is_reset_when_its_rest_is_not_read(
    server: HttpServer, writer: Writer
) -> None:
    with H2Client(server.ports[H2], window=10) as client:
        stuck = _follow(client)
        writer.write(0, b"x" * 100)
        _read(client, stuck, b"x" * 10)
        writer.close(0)
        server.pass_timeout(11)
        while stuck not in client.resets:
            client.read_some()
        assert client.resets[stuck] == ErrorCodes.CANCEL
        assert client.ask("HEAD", "/nothing").status == 404
        assert writer.lost == []


def test_streams_do_not_keep_requests_from_starting(server: HttpServer, writer: Writer) -> None:
    with H2Client(server.ports[H2], window=65535) as client:
        for n in range(20):
            _follow(client)
            writer.write(n, b"x" * (1 << 20))
        assert client.ask("HEAD", "/nothing").status == 404


def test_a_handler_learns_that_its_stream_is_already_lost(
    server: HttpServer, client: H2Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Call] = []
    monkeypatch.setattr(server.dispatch.handlers._table["topic_state"], "handle", calls.append)
    request = client.start("GET", "/v0/topics/t")
    wait_until(lambda: len(calls) == 1)
    client.reset(request)
    assert client.ask("HEAD", "/nothing").status == 404
    writer = Writer(server)
    server.run(lambda: writer.start(calls[0]))
    wait_until(lambda: writer.lost == [0])
    writer.write(0, b"discarded")
    writer.close(0)
    assert client.ask("HEAD", "/nothing").status == 404


@pytest.mark.parametrize("how", ["closes", "resets", "closes its side"])
def test_a_client_that_goes_is_lost_to_all_its_streams(server: HttpServer, writer: Writer, how: str) -> None:
    client = H2Client(server.ports[H2])
    with client:
        _follow(client), _follow(client)
        if how == "resets":
            client.socket.setsockopt(1, 13, struct.pack("ii", 1, 0))
        if how == "closes its side":
            client.send_end()
            client.read_to_end()
            assert sorted(writer.lost) == [0, 1]
    wait_until(lambda: sorted(writer.lost) == [0, 1])
    wait_until(lambda: server.run(lambda: not server.connections))


def test_a_drain_waits_for_the_final_bytes_of_each_stream(tmp_path_factory: pytest.TempPathFactory) -> None:
    with HttpServer(tmp_path_factory.mktemp("data")) as server, H2Client(server.ports[H2]) as client:
        writer = Writer(server)
        server.dispatch.handlers._table["topic_state"].handle = writer.start
        followed = _follow(client)
        server.drain()
        writer.write(0, b"event: error\n\n")
        writer.close(0)
        assert client.finish(followed).body == b"event: error\n\n"
        client.read_to_end()
        assert client.gone_away == (followed, ErrorCodes.NO_ERROR)


def test_watches_of_several_sessions_share_a_connection(
    server: HttpServer, client: H2Client, topic: str
) -> None:
    names = [f"{topic[:200]}-{n}" for n in range(3)]
    watches = []
    for name in names:
        client.ask("POST", f"/v0/topics/{name}", RECORDS)
        answer = client.ask("POST", "/v0/watch", b'{"topics":{"%b":{"from_seq":0}}}' % name.encode()).json
        watches.append((answer["stream_url"], H2Events(client, answer["stream_url"])))
    for seq in range(2, 5):
        for name, (_, events) in zip(names, watches, strict=True):
            assert events.records(1) == [(name, seq - 1)]
            assert client.ask("POST", f"/v0/topics/{name}", RECORDS).json["first_seq"] == seq
    target, first = watches[0]
    second = H2Events(client, target)
    while (event := first.next()).name != "error":
        pass
    assert event.data["code"] == "taken_over"
    assert client.finish(first.stream_id).status == 200
    assert client.ask("POST", f"/v0/topics/{names[0]}", RECORDS).json["first_seq"] == 5
    while second.records(1) != [(names[0], 5)]:
        pass
    client.reset(second.stream_id)
    assert client.ask("HEAD", target).status == 200


def test_much_is_written_and_read_in_order(server: HttpServer, writer: Writer, client: H2Client) -> None:
    followed = _follow(client)
    data = b"".join(b"%07d\n" % n for n in range(200_000))
    chunks = [data[at : at + 30_000] for at in range(0, len(data), 30_000)]

    def write_on() -> None:
        stream = writer.streams[0]
        while chunks and not stream.is_paused:
            stream.write(chunks.pop(0))
        if not chunks:
            stream.close()

    writer.streams[0].on_ready = write_on
    threading.Thread(target=server.run, args=(write_on,)).start()
    assert client.finish(followed).body == data
