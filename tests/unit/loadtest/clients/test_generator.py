from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from loadtest.clients import generator
from loadtest.clients.generator import GeneratorMissing, Load, LoadFailed, run
from tests.unit.loadtest.scripted_server import CLOSE, Request, answer, scripted

ANSWER = answer(b'{"topic":"x"}')


def test_an_answer_may_be_split_anywhere() -> None:
    def split(request: Request) -> list[bytes]:
        at = request.number + 1
        return [ANSWER[:at], ANSWER[at:]]

    with scripted(split) as server:
        measured = run(server.port, Load(requests=len(ANSWER) - 1))
    assert measured.fault() is None
    assert measured.statuses == {"200": len(ANSWER) - 1}
    assert measured.body_bytes == (len(ANSWER) - 1) * 13


def test_an_answer_may_arrive_byte_by_byte() -> None:
    parts = [ANSWER[at : at + 1] for at in range(len(ANSWER))]
    with scripted(lambda request: parts) as server:
        measured = run(server.port, Load(requests=2))
    assert (measured.fault(), measured.answers) == (None, 2)


def test_answers_in_one_packet_are_separated() -> None:
    answers: list[bytes] = []

    def four_at_once(request: Request) -> list[bytes]:
        answers.append(answer(b"x" * request.number))
        if request.number % 4 < 3:
            return []
        together = b"".join(answers)
        answers.clear()
        return [together[:-1], together[-1:]]

    with scripted(four_at_once) as server:
        measured = run(server.port, Load(requests=40, pipeline=4))
    assert (measured.fault(), measured.answers) == (None, 40)
    assert measured.body_bytes == sum(range(40))


def test_a_large_body_is_counted_and_not_kept() -> None:
    with scripted(lambda request: [answer(b"x" * 5_000_000)]) as server:
        measured = run(server.port, Load(requests=3))
    assert (measured.fault(), measured.body_bytes) == (None, 15_000_000)


MALFORMED = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\n{}", "plain digits"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2x\r\n\r\n{}", "plain digits"),
    (b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n", "plain digits"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000000\r\n\r\n", "plain digits"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}", "two Content-Length"),
    (b"HTTP/1.1 200 OK\r\nX-Content-Length: 2\r\n\r\n{}", "no Content-Length"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding"),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", "status line"),
    (b"HTTP/1.1 2x0 OK\r\nContent-Length: 2\r\n\r\n{}", "status line"),
    (b"HTTP/1.1 100 Continue\r\n\r\n", "interim"),
    (b"HTTP/1.1 200 OK\r\nX: 1\nContent-Length: 2\r\n\r\n{}", "CRLF"),
    (b"HTTP/1.1 200 OK\r\nnothing\r\nContent-Length: 2\r\n\r\n{}", "colon"),
    (b"HTTP/1.1 200 OK\r\nX: %b\r\nContent-Length: 2\r\n\r\n{}" % (b"x" * 20_000), "16 KiB"),
    (answer(b"{}") + b"and more", "answer no request"),
]


def same(parts: list[bytes], request: Request) -> list[bytes]:
    return parts


@pytest.mark.parametrize(("bytes_sent", "complaint"), MALFORMED)
def test_a_malformed_answer_is_counted(bytes_sent: bytes, complaint: str) -> None:
    half = len(bytes_sent) // 2
    for parts in ([bytes_sent], [bytes_sent[:half], bytes_sent[half:]]):
        with scripted(partial(same, parts)) as server:
            # A second request makes it read on if the first answer counted as complete.
            measured = run(server.port, Load(requests=2, drain=2))
        assert measured.malformed > 0
        assert complaint in measured.complaint


def test_an_answer_without_a_body_needs_no_length() -> None:
    with scripted(lambda request: [b"HTTP/1.1 204 No Content\r\n\r\n"]) as server:
        measured = run(server.port, Load(requests=3))
    assert (measured.fault(), measured.statuses) == (None, {"204": 3})


def test_answers_other_than_2xx_are_counted_and_the_first_is_shown() -> None:
    statuses = [b"200 OK", b"503 No", b"404 Not Found", b"201 Created"]

    def refusing(request: Request) -> list[bytes]:
        return [answer(b'{"error":"\x01%d"}' % request.number, statuses[request.number])]

    with scripted(refusing) as server:
        measured = run(server.port, Load(requests=4))
    assert measured.statuses == {"200": 1, "201": 1, "404": 1, "503": 1}
    assert measured.refused == 2
    assert measured.refusal == '503 {"error":"?1"}'
    assert measured.fault() == '2 answers were not 2xx, the first: 503 {"error":"?1"}'


def test_a_truncated_body_breaks_the_request() -> None:
    def cut_short(request: Request) -> list[bytes]:
        return [ANSWER[:-1], CLOSE] if request.number == 1 else [ANSWER]

    with scripted(cut_short) as server:
        measured = run(server.port, Load(requests=5))
    assert (measured.broken, measured.answers, measured.sent, measured.reconnects) == (1, 4, 5, 1)
    assert measured.fault() == "1 requests were broken"


def test_a_connection_closed_after_an_answer_breaks_no_request() -> None:
    closing = answer(headers=b"Connection: close\r\n")
    with scripted(lambda request: [closing, CLOSE]) as server:
        measured = run(server.port, Load(requests=4))
    assert (measured.fault(), measured.answers, measured.reconnects) == (None, 4, 0)
    assert [request.connection for request in server.requests] == [0, 1, 2, 3]


def test_a_missing_answer_is_reported() -> None:
    with scripted(lambda request: [ANSWER] if request.number else []) as server:
        measured = run(server.port, Load(requests=2, connections=2, drain=0.05))
    assert (measured.answers, measured.unanswered) == (1, 1)
    assert measured.fault() == "1 requests were unanswered"


@pytest.mark.parametrize("rate", [0, 1000])
def test_each_request_can_have_its_own_connection(rate: float) -> None:
    load = Load(requests=20, connections=3, new_connection_each=True, rate=rate)
    with scripted(lambda request: [ANSWER]) as server:
        measured = run(server.port, load)
    assert (measured.fault(), measured.answers) == (None, 20)
    assert len({request.connection for request in server.requests}) == 20


@pytest.fixture
def four_targets(tmp_path: Path) -> str:
    path = tmp_path / "targets"
    path.write_bytes(b"/a\t1\n/b\t22\n/c\n/d\t4444")
    return str(path)


def test_the_targets_are_used_in_turn(four_targets: str) -> None:
    with scripted(lambda request: [ANSWER]) as server:
        measured = run(server.port, Load(targets=four_targets, requests=6))
    assert measured.fault() is None
    sent = [(request.path, request.body) for request in server.requests]
    assert sent == [("/a", b"1"), ("/b", b"22"), ("/c", b""), ("/d", b"4444"), ("/a", b"1"), ("/b", b"22")]


def test_each_connection_uses_only_its_own_targets(four_targets: str) -> None:
    load = Load(targets=four_targets, own_targets=True, connections=2, requests=20)
    with scripted(lambda request: [ANSWER]) as server:
        measured = run(server.port, load)
    assert measured.fault() is None
    paths = [{one.path for one in server.requests if one.connection == number} for number in (0, 1)]
    assert sorted(map(sorted, paths)) == [["/a", "/c"], ["/b", "/d"]]


def test_a_body_can_contain_the_number_of_its_request() -> None:
    body = b'{"records":[{"data":<<<number>>>,"tag":"<<<number>>>"}]}'
    with scripted(lambda request: [ANSWER]) as server:
        run(server.port, Load(body=body, requests=2, headers=("X-Key: 7",)))
    first, second = server.requests
    assert first.body == b'{"records":[{"data":100000000000,"tag":"100000000000"}]}'
    assert second.body == first.body.replace(b"100000000000", b"100000000001")
    assert b"\r\nX-Key: 7\r\n" in first.head
    assert b"\r\nContent-Type: application/json\r\n" in first.head
    assert b"\r\nHost: 127.0.0.1:%d\r\n" % server.port in first.head


@pytest.mark.slow
def test_the_open_loop_counts_the_time_a_request_waits_to_be_sent() -> None:
    def stalls_once(request: Request) -> list[bytes]:
        return [b"", ANSWER] if request.number == 0 else [ANSWER]

    with scripted(stalls_once, gap_seconds=0.4) as server:
        measured = run(server.port, Load(seconds=0.5, rate=200))
    assert measured.fault() is None
    # One answer was late, and four fifths of the requests were due meanwhile.
    assert measured.latency_us.max >= 400_000
    assert measured.latency_us.p50 >= 50_000


@pytest.mark.slow
def test_the_open_loop_sends_at_the_given_rate() -> None:
    with scripted(lambda request: [ANSWER]) as server:
        measured = run(server.port, Load(seconds=0.5, rate=100, connections=4))
    assert measured.fault() is None
    assert 48 <= measured.sent <= 52


@pytest.mark.slow
def test_the_warmup_is_not_measured() -> None:
    with scripted(lambda request: [ANSWER]) as server:
        measured = run(server.port, Load(seconds=0.1, warmup=0.4, rate=100, connections=4))
    assert measured.sent >= 40
    assert measured.answers <= 20
    assert measured.latency_us.count <= 20


def test_a_refused_connection_fails_the_load() -> None:
    with scripted(lambda request: []) as server:
        port = server.port
    with pytest.raises(LoadFailed, match="cannot connect"):
        run(port, Load())


def test_a_missing_compiler_is_reported_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "BUILT", str(tmp_path / "built"))
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(GeneratorMissing, match="install one"):
        generator.program()


def test_a_failed_compilation_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "BUILT", str(tmp_path / "built"))
    monkeypatch.setenv("CC", "false")
    with pytest.raises(GeneratorMissing, match="does not compile"):
        generator.program()


@pytest.mark.parametrize("given", [[], ["--port=0"], ["--port=1", "--rate=-1"], ["--port=1", "stray"]])
def test_an_invalid_option_is_reported_with_the_usage(given: list[str]) -> None:
    done = subprocess.run([generator.program(), *given], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--connections C" in done.stderr
