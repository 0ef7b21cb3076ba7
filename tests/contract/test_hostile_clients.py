"""Clients that send too fast, too slowly or not to the end, or do not read; and unexpected errors."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest

from tests.contract.api import Api
from tests.harness.clients.raw_client import Answer, RawClient, request_bytes
from tests.harness.server.http_server import HTTP1_PORTS, HttpServer, HttpServerProcess
from tests.harness.server.processes import wait_until
from topicsd.http.http1.timeouts import Lingering

pytestmark = pytest.mark.http1

RECORDS = b'{"records":[{"data":1}]}'
MIB = 1 << 20


@pytest.fixture
def client(server: HttpServer, lane: str) -> Iterator[RawClient]:
    with RawClient(server.ports[lane]) as one:
        yield one


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServerProcess]:
    with HttpServerProcess(tmp_path_factory.mktemp("data")) as running:
        yield running


# -- too fast ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("lane", HTTP1_PORTS)
def test_ten_thousand_requests_at_once_are_answered_in_order(
    process: HttpServerProcess, lane: str, is_chunked: bool
) -> None:
    count = 10_000
    with RawClient(process.ports[lane]) as client:
        path = f"/v0/topics/fast-{lane}-{is_chunked}"
        assert client.ask("PUT", path, b'{"durability":"memory"}').status == 201
        sent = b"".join(
            request_bytes("POST", path, b'{"records":[{"data":%d}]}' % n, is_chunked=is_chunked)
            for n in range(count)
        )
        before = process.meter.reset_peak_bytes()
        sender = threading.Thread(target=client.send, args=(sent,))
        sender.start()
        seqs = [client.read_answer().json["first_seq"] for _ in range(count)]
        sender.join()
        assert seqs == list(range(1, count + 1))
        assert process.meter.peak_bytes() - before < 16 * MIB
        last = client.ask("POST", f"{path}/diff", b'{"from_seq":%d}' % (count - 1)).json["records"]
        assert last[0]["data"] == count - 1


@pytest.mark.slow
@pytest.mark.parametrize("lane", HTTP1_PORTS)
def test_a_client_that_asks_for_much_and_reads_nothing_costs_no_memory(
    process: HttpServerProcess, lane: str
) -> None:
    with RawClient(process.ports[lane]) as client:
        path = f"/v0/topics/unread-{lane}"
        for _ in range(8):
            client.ask("POST", path, b'{"records":[{"data":"%b"}]}' % (b"x" * (MIB // 8)))
        before = process.meter.reset_peak_bytes()
        client.socket.settimeout(0.3)
        request = request_bytes("POST", path + "/diff", b"{}")
        # It is a bounded number of answers of 1 MiB that the server makes, and of requests that it takes.
        with pytest.raises(TimeoutError):
            _send_for_ever(client, request * 100)
        assert process.meter.peak_bytes() - before < 32 * MIB
    with RawClient(process.ports[lane]) as other:
        assert other.ask("GET", path).status == 200


# -- too slow ----------------------------------------------------------------------------------------------

HEAD = b"POST /v0/topics/slow HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
UNFINISHED = {
    "a first letter": b"P",
    "half a head": HEAD,
    "a long half of a head": HEAD + b"x: " + b"y" * 20_000,
    "a head without a body": HEAD + b"content-length: 24\r\n\r\n",
    "half a body": HEAD + b"content-length: 24\r\n\r\n" + RECORDS[:10],
    "a little of a large body": HEAD + b"content-length: 30000000\r\n\r\n{",
    "half a chunk": HEAD + b"transfer-encoding: chunked\r\n\r\n18\r\n{",
    "no last chunk": HEAD + b"transfer-encoding: chunked\r\n\r\n18\r\n" + RECORDS + b"\r\n",
}


@pytest.mark.parametrize("sent", UNFINISHED.values(), ids=UNFINISHED)
def test_a_request_that_does_not_come_through_is_408_and_the_end(
    server: HttpServer, client: RawClient, sent: bytes
) -> None:
    client.send(sent)
    _wait_until_read(server)
    server.pass_timeout(9)
    assert not _has_answer(client)
    server.pass_timeout(11)
    answer = client.read_answer()
    assert (answer.status, answer.code, answer.closes) == (408, "request_timeout", True)
    client.read_end()


def test_a_head_that_keeps_arriving_has_no_more_time(server: HttpServer, client: RawClient) -> None:
    client.send(HEAD + b"x: ")
    _wait_until_read(server)
    server.pass_timeout(6)
    for _ in range(20):
        client.send_in_parts([b"y"])
    server.pass_timeout(11)
    assert client.read_answer().status == 408


def test_a_body_that_keeps_its_pace_may_take_long(server: HttpServer, client: RawClient) -> None:
    body = b'{"records":[{"data":"%b"}]}' % (b"x" * 60_000)
    client.send(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body[:31_000])
    _wait_until_read(server)
    # 31 of the 30 KiB that are due at that time are there.
    server.pass_timeout(40)
    assert not _has_answer(client)
    server.pass_timeout(42)
    assert client.read_answer().status == 408


def test_an_idle_connection_is_closed_in_the_end_and_not_before(
    server: HttpServer, client: RawClient
) -> None:
    assert client.ask("GET", "/v0/topics/none").status == 404
    server.pass_timeout(74)
    assert client.ask("GET", "/v0/topics/none").status == 404
    server.pass_timeout(76)
    client.read_end()


def test_a_connection_that_never_says_anything_is_closed(server: HttpServer, client: RawClient) -> None:
    wait_until(lambda: server.run(lambda: bool(server.connections)))
    server.pass_timeout(76)
    client.read_end()


def test_a_reader_that_waits_for_records_does_not_time_out(server: HttpServer, api: Api) -> None:
    api.put()
    api.client.send(request_bytes("POST", api.path + "/diff", b'{"wait_ms":30000}'))
    wait_until(lambda: server.run(lambda: bool(server.shard.state.topics[api.topic].waiters)))
    server.pass_timeout(25)
    server.pass_timeout(90)
    with RawClient(api.client.socket.getpeername()[1]) as writer:
        Api(writer, api.topic).append(1)
    assert len(api.client.read_answer().json["records"]) == 1


@pytest.fixture(scope="module")
def generous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """Its answers are larger than the buffers of the kernel."""
    with HttpServer(tmp_path_factory.mktemp("data"), max_response_bytes=8 * MIB) as running:
        with RawClient(running.ports[HTTP1_PORTS[0]]) as client:
            for _ in range(64):
                Api(client, "large").append("x" * (MIB // 8))
        wait_until(lambda: not running.run(lambda: running.connections))
        yield running


@pytest.fixture
def idle_reader(generous: HttpServer, lane: str) -> Iterator[RawClient]:
    with RawClient(generous.ports[lane], buffer_bytes=64 << 10) as one:
        yield one
    wait_until(lambda: not generous.run(lambda: generous.connections))


def _ask_for_more_than_fits(server: HttpServer, client: RawClient, *fields: str) -> None:
    client.send(request_bytes("POST", "/v0/topics/large/diff", b"{}", *fields))

    def is_paused() -> bool:
        # One that ends with its answer waits for its client to read it.
        return any(getattr(one, "_is_paused", isinstance(one, Lingering)) for one in server.connections)

    wait_until(lambda: server.run(is_paused))


@pytest.mark.parametrize("fields", [(), ("connection: close",)])
def test_a_client_that_does_not_read_is_cut_off(
    generous: HttpServer, idle_reader: RawClient, fields: tuple[str, ...]
) -> None:
    _ask_for_more_than_fits(generous, idle_reader, *fields)
    generous.pass_timeout(0)
    generous.pass_timeout(9)
    assert generous.run(lambda: len(generous.connections)) == 1
    generous.pass_timeout(11)
    wait_until(lambda: not generous.run(lambda: generous.connections))


@pytest.mark.parametrize("fields", [(), ("connection: close",)])
def test_a_client_that_reads_slowly_is_left_alone_while_it_reads(
    generous: HttpServer, idle_reader: RawClient, fields: tuple[str, ...]
) -> None:
    _ask_for_more_than_fits(generous, idle_reader, *fields)
    for seconds in range(0, 80, 8):
        missing = 256 << 10
        while missing > 0:
            data = idle_reader.socket.recv(missing)
            assert data, "the server closed"
            missing -= len(data)
        generous.pass_timeout(seconds)
    assert generous.run(lambda: len(generous.connections)) == 1


def test_a_client_that_is_refused_and_does_not_close_is_closed(server: HttpServer, client: RawClient) -> None:
    client.send(b"nonsense\r\n\r\n")
    assert client.read_answer().status == 400
    client.read_end()
    assert server.run(lambda: len(server.connections)) == 1
    client.send(b"x" * 100_000)
    server.pass_timeout(3)
    wait_until(lambda: not server.run(lambda: server.connections))


def test_a_client_that_goes_away_in_the_middle_is_forgotten(server: HttpServer, lane: str) -> None:
    for sent in UNFINISHED.values():
        for is_reset in (False, True):
            with RawClient(server.ports[lane]) as gone:
                gone.send(sent)
                if is_reset:
                    gone.reset()
    wait_until(lambda: not server.run(lambda: server.connections))


# -- unexpected errors -------------------------------------------------------------------------------------


def _broken(*_: object) -> None:
    raise RuntimeError("a secret of ours")


PLACES: dict[str, tuple[str, str, bytes]] = {
    "the engine's append": ("topicsd.service.shards.limits.append", "", RECORDS),
    "the rendering of an append": ("topicsd.service.handlers.render_appended", "", RECORDS),
    "the decoding": ("topicsd.service.handlers.decode_append", "", RECORDS),
    "the read": ("topicsd.service.diff.ReadRequest", "/diff", b"{}"),
    "the rendering of a read": ("topicsd.service.diff.render_read", "/diff", b"{}"),
    "the answer to a delete": ("topicsd.service.handlers.encode", "/delete", b'{"before_seq":1}'),
}


@pytest.mark.parametrize(("place", "rest", "body"), PLACES.values(), ids=PLACES)
def test_an_unexpected_error_is_500_with_an_id_that_is_in_the_log(
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: str,
    rest: str,
    body: bytes,
) -> None:
    api.append(0)
    monkeypatch.setattr(place, _broken)
    _is_500_and_logged(api.call("POST", rest, body), caplog)
    api.client.read_end()
    monkeypatch.undo()
    with RawClient(api.client.socket.getpeername()[1]) as other:
        assert other.ask("GET", api.path).status == 200


def test_so_it_is_for_a_reader_that_waits_and_the_others_are_answered(
    server: HttpServer, api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    api.put()
    api.client.send(request_bytes("POST", api.path + "/diff", b'{"wait_ms":30000}'))
    wait_until(lambda: server.run(lambda: bool(server.shard.state.topics[api.topic].waiters)))
    monkeypatch.setattr("topicsd.engine.read.read.try_read", _broken)
    with RawClient(api.client.socket.getpeername()[1]) as writer:
        assert Api(writer, api.topic).append(1)["first_seq"] == 1
    _is_500_and_logged(api.client.read_answer(), caplog)
    api.client.read_end()


def _is_500_and_logged(answer: Answer, caplog: pytest.LogCaptureFixture) -> None:
    assert (answer.status, answer.code, answer.closes) == (500, "internal", True)
    log_id = re.search(r"\b[0-9a-f]{8}\b", answer.message)
    assert log_id is not None
    assert "secret" not in answer.body.decode()
    assert "Traceback" not in answer.body.decode()
    record = next(one for one in caplog.records if log_id[0] in one.getMessage())
    assert record.exc_info is not None
    assert "a secret of ours" in str(record.exc_info[1])


# -- waiting for the server --------------------------------------------------------------------------------


def _wait_until_read(server: HttpServer) -> None:
    """The bytes that were sent are on loopback, so a moment is enough; it is looked for, not slept for."""

    def has_read() -> bool:
        return any(_holds_something(one) for one in server.connections)

    wait_until(lambda: server.run(has_read))


def _holds_something(connection: object) -> bool:
    reader = getattr(connection, "_reader", None)
    return bool(getattr(connection, "_pending", 0)) if reader is None else not reader.is_empty


def _has_answer(client: RawClient) -> bool:
    client.socket.settimeout(0.02)
    try:
        return bool(client.socket.recv(1, 2))  # MSG_PEEK
    except TimeoutError:
        return False
    finally:
        client.socket.settimeout(20)


def _send_for_ever(client: RawClient, data: bytes) -> None:
    for _ in range(2000):
        client.send(data)


def test_what_stands_behind_the_last_request_does_not_reset_its_answer(
    server: HttpServer, client: RawClient
) -> None:
    last = request_bytes("GET", "/v0/topics/none", b"", "connection: close")
    client.send(last + request_bytes("POST", "/v0/topics/none", b"x" * (300 << 10)))
    assert client.read_answer().status == 404
    client.read_end()
    wait_until(lambda: server.run(lambda: len(server.connections)) <= 1)
