"""Clients of HTTP/2 that flood, stall, lie or play with windows: answered by limits, in bounded memory."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest
from h2.errors import ErrorCodes

from tests.contract.test_http2 import JSON_FIELD, MIB, PREFACE, RECORDS
from tests.harness.clients.h2_client import H2Client, frame, request_headers
from tests.harness.clients.raw_client import RawClient
from tests.harness.server.http_server import H2, HttpServer, HttpServerProcess
from tests.harness.server.processes import wait_until

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4


@pytest.fixture
def client(server: HttpServer) -> Iterator[H2Client]:
    with H2Client(server.ports[H2]) as one:
        yield one


def _ends_with(client: H2Client, code: ErrorCodes) -> None:
    client.read_to_end()
    assert client.gone_away is not None
    assert client.gone_away.error_code == code


def _send_until_it_ends(client: H2Client, data: bytes, count_max: int) -> None:
    """Again and again, as a client does that does not listen."""
    for _ in range(count_max):
        try:
            client.socket.sendall(data)
        except OSError:
            return


# -- floods ------------------------------------------------------------------------------------------------

FLOODS = {
    "pings": frame(PING, 0, 0, bytes(8)),
    "settings": frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)),
    "empty settings": frame(SETTINGS, 0, 0),
    "priorities": frame(PRIORITY, 0, 9, bytes(4) + b"\x0f"),
    "openings of the window": frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)),
    "frames of an unknown type": frame(0xEE, 0, 0, b"x" * 100),
    "resets of what is gone": frame(RST_STREAM, 0, 1, bytes(4)),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_flood_of_frames_that_ask_for_nothing_is_the_end(client: H2Client, path: str, flood: bytes) -> None:
    assert client.ask("GET", path).status == 404
    _send_until_it_ends(client, flood * 100, 1000)
    _ends_with(client, ErrorCodes.ENHANCE_YOUR_CALM)


@pytest.mark.parametrize("chunk", [b"", b"x", b"x" * 100], ids=["empty", "a byte", "a little"])
def test_a_body_in_tiny_frames_ends_the_connection(client: H2Client, path: str, chunk: bytes) -> None:
    request = client.open([*request_headers("POST", path), JSON_FIELD], ends=False)
    _send_until_it_ends(client, frame(DATA, 0, request, chunk) * 100, 1000)
    _ends_with(client, ErrorCodes.ENHANCE_YOUR_CALM)


@pytest.mark.slow
def test_so_many_frames_are_nothing_to_a_client_that_asks_for_something(client: H2Client, path: str) -> None:
    """Each request comes with what a careful client may say beside it."""
    client.ask("PUT", path, b'{"durability":"memory"}')
    beside = FLOODS["pings"] + FLOODS["openings of the window"]
    for n in range(3000):
        client.socket.sendall(beside)
        assert client.ask("POST", path, RECORDS).json["first_seq"] == n + 1


def test_streams_that_are_opened_and_reset_at_once_are_the_end(client: H2Client, path: str) -> None:
    client.ask("PUT", path, b"{}")
    begun = 0
    while begun < 1000 and not client.is_at_end:
        try:
            client.reset(client.start("POST", f"{path}/diff", b'{"wait_ms":30000}'))
        except OSError:
            break
        begun += 1
    _ends_with(client, ErrorCodes.ENHANCE_YOUR_CALM)
    assert client.gone_away is not None
    assert client.gone_away.last_stream_id < 2 * 600


def test_streams_that_the_server_is_made_to_reset_are_the_end(client: H2Client, path: str) -> None:
    client.ask("PUT", path, b"{}")
    for _ in range(1000):
        if client.is_at_end:
            break
        try:
            waiting = client.start("POST", f"{path}/diff", b'{"wait_ms":30000}')
            client.send_frame(DATA, 0, waiting, b"x" * 300)
            while waiting not in client.resets and not client.is_at_end:
                client.read_some()
        except OSError:
            break
    _ends_with(client, ErrorCodes.ENHANCE_YOUR_CALM)


def test_a_header_block_in_endless_frames_ends_the_connection(client: H2Client) -> None:
    client.send_frame(HEADERS, END_STREAM, 1, b"\x82")
    _send_until_it_ends(client, frame(CONTINUATION, 0, 1, b"\0" * 1000), 1000)
    _ends_with(client, ErrorCodes.ENHANCE_YOUR_CALM)


def test_a_header_block_in_empty_frames_ends_the_connection(client: H2Client) -> None:
    client.send_frame(HEADERS, END_STREAM, 1, b"\x82")
    _send_until_it_ends(client, frame(CONTINUATION, 0, 1), 1000)
    _ends_with(client, ErrorCodes.PROTOCOL_ERROR)


def test_anything_within_a_header_block_is_the_end(client: H2Client) -> None:
    client.send_frame(HEADERS, END_STREAM, 1, b"\x82")
    client.send_frame(PING, 0, 0, bytes(8))
    _ends_with(client, ErrorCodes.PROTOCOL_ERROR)


def test_a_header_block_that_unpacks_to_far_more_is_the_end(client: H2Client) -> None:
    # One field of 4 KiB into the table, and then a byte for each time that it is meant.
    literal = b"\x40\x01x\x7f\xa1\x1e" + b"y" * 4000
    client.send_frame(HEADERS, END_STREAM | END_HEADERS, 1, literal + b"\xbe" * 10_000)
    _ends_with(client, ErrorCodes.ENHANCE_YOUR_CALM)


def test_heads_of_too_many_fields_are_not_read_for_ever(client: H2Client) -> None:
    many = [(b"x-%d" % n, b"y") for n in range(101)]
    statuses = []
    while not client.is_at_end and len(statuses) < 100:
        request = client.open([*request_headers("GET", "/"), *many])
        while not client.has_head(request) and not client.is_at_end:
            client.read_some()
        statuses.append(client.has_head(request))
    assert 15 < sum(statuses) < 100
    _ends_with(client, ErrorCodes.ENHANCE_YOUR_CALM)


def test_settings_that_mean_nothing_are_not_kept(server: HttpServer, client: H2Client, path: str) -> None:
    for at in range(0, 6400, 64):
        unknown = b"".join(struct.pack(">HI", 100 + at + n, n) for n in range(64))
        client.send_frame(SETTINGS, 0, 0, unknown)
    assert client.ask("GET", path).status == 404

    def kept() -> int:
        return max(len(one._wire.remote_settings) for one in server.connections)  # type: ignore[attr-defined]

    assert server.run(kept) < 10
    client.send_frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", n, 1) for n in range(100, 200)))
    _ends_with(client, ErrorCodes.ENHANCE_YOUR_CALM)


def test_a_table_of_fields_as_large_as_the_client_likes_is_not_filled(
    server: HttpServer, client: H2Client, path: str
) -> None:
    client.wire.decoder.max_allowed_table_size = 1 << 31
    client.send_frame(SETTINGS, 0, 0, struct.pack(">HI", 1, 1 << 31))
    client.ask("PUT", path, b"{}")

    def table_size() -> int:
        return max(one._wire.encoder.header_table_size for one in server.connections)  # type: ignore[attr-defined]

    assert server.run(table_size) == 4096


# -- frames that are none ----------------------------------------------------------------------------------

BROKEN = {
    "a frame that is announced too long": (b"\x00\x40\x01\0\0\0\0\0\1", ErrorCodes.FRAME_SIZE_ERROR),
    "a frame that is announced very long": (b"\xff\xff\xff\0\0\0\0\0\1", ErrorCodes.FRAME_SIZE_ERROR),
    "a ping of another length": (frame(PING, 0, 0, b"x"), ErrorCodes.FRAME_SIZE_ERROR),
    "a ping on a stream": (frame(PING, 0, 1, bytes(8)), ErrorCodes.PROTOCOL_ERROR),
    "settings of no length": (frame(SETTINGS, 0, 0, b"12345"), None),
    "settings on a stream": (frame(SETTINGS, 0, 1), ErrorCodes.PROTOCOL_ERROR),
    "a window that may not be": (
        frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)),
        ErrorCodes.FLOW_CONTROL_ERROR,
    ),
    "a frame size that may not be": (
        frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 1)),
        ErrorCodes.PROTOCOL_ERROR,
    ),
    "a push": (frame(5, END_HEADERS, 1, bytes(4) + b"\x82"), ErrorCodes.PROTOCOL_ERROR),
    "data of a stream that never was": (frame(DATA, 0, 1, b"x"), ErrorCodes.PROTOCOL_ERROR),
    "data of no stream": (frame(DATA, 0, 0, b"x"), ErrorCodes.PROTOCOL_ERROR),
    "a continuation of nothing": (frame(CONTINUATION, 0, 1, b"x"), ErrorCodes.PROTOCOL_ERROR),
    "an even stream": (frame(HEADERS, 5, 2, b"\x82\x86\x84\x41\x01a"), ErrorCodes.PROTOCOL_ERROR),
    "no header block": (frame(HEADERS, 5, 1, b"\xff\xff\xff\xff\xff\xff"), None),
    "padding that is longer than the frame": (frame(DATA, 8, 1, b"\xff"), ErrorCodes.PROTOCOL_ERROR),
    "an opening by nothing": (frame(WINDOW_UPDATE, 0, 0, bytes(4)), None),
    "a window that overflows": (
        frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - 1)),
        ErrorCodes.FLOW_CONTROL_ERROR,
    ),
}


@pytest.mark.parametrize(("sent", "code"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_frame_is_the_end(client: H2Client, sent: bytes, code: ErrorCodes | None) -> None:
    client.socket.sendall(sent)
    client.read_to_end()
    assert client.gone_away is not None
    assert client.gone_away.error_code == code if code is not None else client.gone_away.error_code


def test_the_first_frame_is_settings(server: HttpServer) -> None:
    with RawClient(server.ports[H2]) as client:
        client.send(PREFACE + frame(PING, 0, 0, bytes(8)))
        received = b""
        while data := client.socket.recv(1000):
            received += data
        assert received.endswith(frame(7, 0, 0, struct.pack(">II", 0, ErrorCodes.PROTOCOL_ERROR)))


def test_what_came_before_a_broken_frame_is_done(server: HttpServer, client: H2Client, path: str) -> None:
    client.wire.send_headers(1, [*request_headers("POST", path), JSON_FIELD])
    client.wire.send_data(1, RECORDS, end_stream=True)
    client.socket.sendall(client.wire.data_to_send() + frame(DATA, 0, 99, b"x"))
    _ends_with(client, ErrorCodes.PROTOCOL_ERROR)
    with H2Client(server.ports[H2]) as other:
        # The request was complete but not started: it is not executed, as its client would not hear of it.
        assert other.ask("GET", path).status == 404


# -- windows -----------------------------------------------------------------------------------------------


def _append_much(server: HttpServer, path: str) -> None:
    with H2Client(server.ports[H2]) as writer:
        for _ in range(8):
            writer.ask("POST", path, b'{"records":[{"data":"%b"}]}' % (b"x" * (MIB // 8)))


def test_a_stream_whose_window_stays_closed_is_reset_and_the_others_continue(
    server: HttpServer, path: str
) -> None:
    _append_much(server, path)
    with H2Client(server.ports[H2], window=0) as client:
        stuck = client.start("POST", f"{path}/diff", b"{}")
        while not client.has_head(stuck):
            client.read_some()
        server.pass_timeout(9)
        good = client.start("GET", path)
        client.open_window(10_000, good)
        assert client.finish(good).status == 200
        assert stuck not in client.resets
        server.pass_timeout(11)
        while stuck not in client.resets:
            client.read_some()
        assert client.resets[stuck] == ErrorCodes.CANCEL
        good = client.start("GET", path)
        client.open_window(10_000, good)
        assert client.finish(good).status == 200


def test_a_window_of_one_stream_that_overflows_resets_that_stream(client: H2Client, path: str) -> None:
    client.ask("PUT", path, b"{}")
    waiting = client.start("POST", f"{path}/diff", b'{"wait_ms":30000}')
    client.send_frame(WINDOW_UPDATE, 0, waiting, struct.pack(">I", (1 << 31) - 1))
    while waiting not in client.resets:
        client.read_some()
    assert client.resets[waiting] == ErrorCodes.FLOW_CONTROL_ERROR
    assert client.ask("GET", path).status == 200


def test_more_than_the_window_of_a_stream_is_the_end(client: H2Client, path: str) -> None:
    request = client.open([*request_headers("POST", path), JSON_FIELD], ends=False)
    # A body of unknown length gets a larger window, but a client that does not wait for it is refused.
    client.open([*request_headers("POST", path), JSON_FIELD, (b"content-length", b"67108864")], ends=False)
    _send_until_it_ends(client, frame(DATA, 0, request, b"x" * 16384), 10)
    _ends_with(client, ErrorCodes.FLOW_CONTROL_ERROR)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServerProcess]:
    with HttpServerProcess(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("window", [0, (1 << 31) - 1], ids=["closed windows", "a closed socket"])
def test_a_client_that_asks_for_much_and_reads_nothing_costs_no_memory(
    process: HttpServerProcess, window: int
) -> None:
    path = f"/v0/topics/unread-{window}"
    with H2Client(process.ports[H2], window=window, buffer_bytes=64 << 10) as client:
        with H2Client(process.ports[H2]) as writer:
            for _ in range(8):
                writer.ask("POST", path, b'{"records":[{"data":"%b"}]}' % (b"x" * (MIB // 8)))
        before = process.meter.reset_peak_bytes()
        for _ in range(100):
            client.start("POST", f"{path}/diff", b"{}")
        assert process.meter.peak_bytes() - before < 32 * MIB
        with H2Client(process.ports[H2]) as other:
            assert other.ask("GET", path).status == 200
        assert process.meter.peak_bytes() - before < 32 * MIB


@pytest.mark.slow
def test_bodies_that_come_at_once_and_do_not_end_cost_little_memory(process: HttpServerProcess) -> None:
    path = "/v0/topics/bodies"
    with H2Client(process.ports[H2]) as client:
        client.ask("PUT", path, b"{}")
        before = process.meter.reset_peak_bytes()
        length = (b"content-length", b"%d" % (10 * MIB))
        headers = [*request_headers("POST", path), JSON_FIELD, length]
        requests = [client.open(headers, ends=False) for _ in range(99)]
        for _ in range(20):
            client.ask("GET", path)
        # What one body may have is let in, and the first window of each of the others.
        windows = [client.wire.streams[one].outbound_flow_control_window for one in requests]
        assert sum(window > 65535 for window in windows) == 6
        for one in requests:
            client.send_body(one, b"x" * 16384, ends=False)
        client.ask("GET", path)
        assert process.meter.peak_bytes() - before < 32 * MIB


# -- too slow ----------------------------------------------------------------------------------------------


def test_a_body_that_does_not_come_is_408_on_its_stream(
    server: HttpServer, client: H2Client, path: str
) -> None:
    headers = [*request_headers("POST", path), JSON_FIELD, (b"content-length", b"24")]
    request = client.open(headers, ends=False)
    client.send_body(request, RECORDS[:10], ends=False)
    assert client.ask("GET", path).status == 404
    server.pass_timeout(9)
    assert client.ask("GET", path).status == 404
    assert not client.has_head(request)
    server.pass_timeout(11)
    assert client.finish(request).code == "request_timeout"
    assert client.ask("GET", path).status == 404


def test_a_body_that_waits_to_be_let_in_is_not_late(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with (
        HttpServer(tmp_path_factory.mktemp("data"), max_body_bytes=MIB) as server,
        H2Client(server.ports[H2]) as client,
    ):
        body = RECORDS.ljust(700 << 10)
        headers = [
            *request_headers("POST", "/v0/topics/t"),
            JSON_FIELD,
            (b"content-length", b"%d" % len(body)),
        ]
        first, second = client.open(headers, ends=False), client.open(headers, ends=False)
        client.ask("GET", "/v0/topics/t")
        server.pass_timeout(11)
        assert client.finish(first).code == "request_timeout"
        client.send_body(second, body)
        assert client.finish(second).json["first_seq"] == 1


UNFINISHED = {
    "half of a frame": frame(PING, 0, 0, bytes(8))[:12],
    "half of the head of a frame": b"\0\0",
    "a header block without its end": frame(HEADERS, END_STREAM, 1, b"\x82"),
    "a header block that continues": frame(HEADERS, END_STREAM, 1, b"\x82")
    + frame(CONTINUATION, 0, 1, b"\x86"),
    "half of a header block": frame(HEADERS, 5, 1, b"\x82" * 100)[:50],
}


@pytest.mark.parametrize("sent", UNFINISHED.values(), ids=UNFINISHED)
def test_a_frame_that_does_not_come_through_is_the_end(
    server: HttpServer, client: H2Client, sent: bytes
) -> None:
    client.socket.sendall(sent)

    def is_inside() -> bool:
        return any(one._cutter.has_partial for one in server.connections)  # type: ignore[attr-defined]

    wait_until(lambda: server.run(is_inside))
    server.pass_timeout(9)
    server.pass_timeout(11)
    _ends_with(client, ErrorCodes.NO_ERROR)


def test_a_preface_that_does_not_come_is_408(server: HttpServer) -> None:
    with RawClient(server.ports[H2]) as client:
        client.send(PREFACE[:20])
        wait_until(lambda: server.run(lambda: bool(server.connections)))
        server.pass_timeout(11)
        assert client.read_answer().status == 408
        client.read_end()


def test_an_idle_connection_is_closed_in_the_end_whatever_it_pings(
    server: HttpServer, client: H2Client
) -> None:
    assert client.ask("GET", "/v0/topics/none").status == 404
    server.pass_timeout(74)
    client.wire.ping(bytes(8))
    client.flush()
    client.read_some()
    assert not client.is_at_end
    server.pass_timeout(76)
    _ends_with(client, ErrorCodes.NO_ERROR)


def test_a_reader_that_waits_for_records_does_not_time_out(
    server: HttpServer, client: H2Client, path: str, topic: str
) -> None:
    client.ask("PUT", path, b"{}")
    waiting = client.start("POST", f"{path}/diff", b'{"wait_ms":30000}')
    wait_until(lambda: server.run(lambda: bool(server.shard.state.topics[topic].waiters)))
    server.pass_timeout(25)
    server.pass_timeout(90)
    client.ask("POST", path, RECORDS)
    assert len(client.finish(waiting).json["records"]) == 1


def test_a_client_that_does_not_read_is_cut_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    with HttpServer(tmp_path_factory.mktemp("data"), max_response_bytes=8 * MIB) as server:
        with H2Client(server.ports[H2]) as writer:
            for _ in range(64):
                writer.ask("POST", "/v0/topics/t", b'{"records":[{"data":"%b"}]}' % (b"x" * (MIB // 8)))
        wait_until(lambda: server.run(lambda: not server.connections))
        with H2Client(server.ports[H2], window=(1 << 31) - 1, buffer_bytes=64 << 10) as client:
            client.open_window((1 << 31) - 1 - 65535)
            for _ in range(4):
                client.start("POST", "/v0/topics/t/diff", b"{}")

            def is_paused() -> bool:
                return any(one._is_paused for one in server.connections)  # type: ignore[attr-defined]

            wait_until(lambda: server.run(is_paused))
            server.pass_timeout(0)
            server.pass_timeout(9)
            assert server.run(lambda: len(server.connections)) == 1
            server.pass_timeout(11)
            wait_until(lambda: server.run(lambda: not server.connections))


def test_a_client_that_goes_away_in_the_middle_is_forgotten(server: HttpServer, path: str) -> None:
    for is_reset in (False, True):
        with H2Client(server.ports[H2]) as client:
            client.ask("PUT", path, b"{}")
            client.start("POST", f"{path}/diff", b'{"wait_ms":30000}')
            client.open([*request_headers("POST", path), JSON_FIELD], ends=False)
            if is_reset:
                client.socket.setsockopt(1, 13, struct.pack("ii", 1, 0))
    wait_until(lambda: server.run(lambda: not server.connections))


# -- unexpected errors -------------------------------------------------------------------------------------


def _broken(*_: object) -> None:
    raise RuntimeError("a secret of ours")


def test_an_unexpected_error_is_500_on_its_stream(
    client: H2Client, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("topicsd.service.handlers.decode_append", _broken)
    answer = client.ask("POST", path, RECORDS)
    assert (answer.status, answer.code) == (500, "internal")
    assert "secret" not in answer.message
    monkeypatch.undo()
    assert client.ask("POST", path, RECORDS).status == 201


def test_an_error_of_the_lane_itself_ends_the_connection_and_is_logged(
    client: H2Client, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client.ask("GET", path)
    monkeypatch.setattr("topicsd.http.http2.requests.read_head", _broken)
    client.start("GET", path)
    _ends_with(client, ErrorCodes.INTERNAL_ERROR)
    assert any(one.exc_info and "a secret of ours" in str(one.exc_info[1]) for one in caplog.records)
