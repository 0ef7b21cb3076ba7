"""Connections that the supervisor answers itself, over real sockets, and their move to workers."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from router.control import control_gate
from router.control.control import ControlEndpoints
from shared.http.client_speed import Outflow
from shared.http.http2_preface import PREFACE
from tests.harness.clients.raw_client import request_bytes
from tests.harness.server.supervisor_parts import SHORT_TIMES, SupervisorParts, until

pytestmark = pytest.mark.slow

Play = Callable[[SupervisorParts], Coroutine[Any, Any, None]]

KEYS = "reader-key-123456:read:orders.,writer-key-123456:write"


def on_stage(play: Play, **given: Any) -> None:
    async def run() -> None:
        async with SupervisorParts(**given) as stage:
            await play(await stage.ready())
            await until(lambda: stage.controls.count == 0)

    uvloop.run(run())


async def long_list(shard: int, prefix: str, after: str, limit: int) -> list[dict[str, Any]] | None:
    names = [f"{letter}.{number:05}" for letter in ("bills", "orders") for number in range(400)]
    listed = [name for name in names if name > after and name.startswith(prefix)]
    return [{"topic": name} for name in listed[:limit]] if shard == 0 else []


def test_one_connection_serves_control_and_topic_requests() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as client:
            for _ in range(3):
                assert (await client.ask("GET", "/v0/health")).json["status"] == "ok"
            answer = await client.ask("GET", "/v0/topics/a", None, "x: y")
            assert answer.json["request"] == "GET /v0/topics/a HTTP/1.1\r\nhost: localhost\r\nx: y"
            # The connection belongs to the worker from here on.
            assert "pid" in (await client.ask("GET", "/v0/health")).json

    on_stage(play)


def test_an_http_2_preface_after_a_request_is_an_unknown_version() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as client:
            assert (await client.ask("GET", "/v0/health")).status == 200
            client.send(PREFACE)
            answer = await client.answer()
            assert (answer.status, answer.fields["connection"]) == (505, "close")
            assert await client.rest() == b""

    on_stage(play)


def test_pipelined_requests_are_answered_in_order_across_the_move() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as client:
            paths = ["/v0/health", "/v0/topics", "/healthz", "/v0/topics/a", "/v0/topics/b", "/nix"]
            client.send(b"".join(request_bytes("GET", path) for path in paths))
            for path in paths[:3]:
                answer = await client.answer()
                assert answer.status == 200
                assert ("topics" in answer.json) == (path == "/v0/topics")
            for path in paths[3:]:
                assert (await client.answer()).json["request"].startswith(f"GET {path} ")

    on_stage(play, list_shard=long_list)


def test_a_large_answer_arrives_whole_before_the_connection_moves() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as client:
            client.send(
                request_bytes("GET", "/v0/topics?page_size=1000") * 40 + request_bytes("GET", "/v0/topics/a")
            )
            await asyncio.sleep(0.2)
            for _ in range(40):
                assert len((await client.answer()).json["topics"]) == 800
            assert "pid" in (await client.answer()).json

    on_stage(play, list_shard=long_list)


def test_an_unused_body_does_not_become_a_request() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as client:
            hidden = request_bytes("GET", "/v0/topics/hidden")
            for size in (len(hidden), 300_000):
                body = (hidden * (size // len(hidden) + 1))[:size]
                answer = await client.ask("DELETE", "/v0/routers/r", body)
                assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_request")
            assert (await client.ask("GET", "/v0/health", b"x" * 50_000)).status == 400
            assert (await client.ask("GET", "/v0/health", b" {} ")).status == 200
            assert (
                (await client.ask("GET", "/v0/topics/seen"))
                .json["request"]
                .startswith("GET /v0/topics/seen ")
            )

    on_stage(play)


BODIES = {
    "chunked": (("transfer-encoding: chunked",), b"3\r\nabc\r\n0\r\n\r\n"),
    "packed": (("content-encoding: gzip", "content-length: {}"), gzip.compress(b"abc")),
    "awaited": (("expect: 100-continue", "content-length: {}"), b"abc"),
    "for another protocol": (("connection: upgrade", "upgrade: h2c", "content-length: {}"), b"abc"),
}


@pytest.mark.parametrize(("fields", "body"), BODIES.values(), ids=BODIES)
def test_a_body_in_any_form_is_refused_and_the_connection_stays_open(
    fields: tuple[str, ...], body: bytes
) -> None:
    async def play(stage: SupervisorParts) -> None:
        lines = [field.format(len(body)) for field in fields]
        async with await stage.connect() as client:
            for _ in range(2):
                client.send(request_bytes("DELETE", "/v0/routers/r", None, *lines))
                if "expect: 100-continue" in lines:
                    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                for byte in body:
                    client.send(bytes([byte]))
                    await asyncio.sleep(0)
                answer = await client.answer()
                assert (answer.status, answer.json["error"]["code"]) == (400, "invalid_request")
            client.send(
                request_bytes("DELETE", "/v0/routers/r", None, *lines)
                + body
                + request_bytes("GET", "/v0/topics/a")
            )
            if "expect: 100-continue" not in lines:
                assert (await client.answer()).status == 400
                assert "pid" in (await client.answer()).json

    on_stage(play)


CHUNKED = b"DELETE /v0/routers/r HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n"
PACKED = b"GET /v0/health HTTP/1.1\r\nhost: a\r\ncontent-encoding: gzip\r\ncontent-length: 3\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"GET /v0/health HTTP/1.1\r\n\r\n", 400, "invalid_request"),
        (b"GET /v0/health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400, "invalid_request"),
        (b"GET /v0/health HTTP/1.1\r\nhost : a\r\n\r\n", 400, "invalid_request"),
        (b"GET /v0/health HTTP/1.1\r\nhost: a\r\ncontent-length: 005\r\n\r\n", 400, "invalid_request"),
        (
            b"GET /v0/health HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            400,
            "invalid_request",
        ),
        (
            b"DELETE /v0/routers/r HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999\r\n\r\n",
            413,
            "payload_too_large",
        ),
        (CHUNKED + b"\r\nzz\r\nabc\r\n0\r\n\r\n", 400, "invalid_request"),
        (CHUNKED + b"content-encoding: br\r\n\r\n", 415, "unsupported_media_type"),
        (CHUNKED + b"expect: 200-maybe\r\n\r\n", 400, "invalid_request"),
        (CHUNKED.replace(b"1.1", b"1.0") + b"\r\n", 400, "invalid_request"),
        (PACKED + b"abc", 400, "invalid_request"),
        (b"GET /v0/health HTTP/1.1\r\nhost: a\r\n" + b"a: b\r\n" * 101 + b"\r\n", 431, "headers_too_large"),
        (b"GET /v0/health HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 60_000, 431, "headers_too_large"),
    ],
)
def test_a_bad_head_is_refused_and_the_connection_closed(data: bytes, status: int, code: str) -> None:
    async def play(stage: SupervisorParts) -> None:
        for before in (b"", request_bytes("GET", "/v0/health")):
            async with await stage.connect() as client:
                client.send(before + data)
                if before:
                    assert (await client.answer()).status == 200
                answer = await client.answer()
                assert (answer.status, answer.json["error"]["code"]) == (status, code)
                assert answer.fields["connection"] == "close"
                assert await client.rest() == b""

    on_stage(play)


def test_the_connection_header_of_the_client_applies() -> None:
    async def play(stage: SupervisorParts) -> None:
        for line, connection in (
            (b"GET /v0/health HTTP/1.1\r\nhost: a\r\n\r\n", None),
            (b"GET /v0/health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n", "close"),
            (b"GET /v0/health HTTP/1.0\r\n\r\n", "close"),
            (b"GET /v0/health HTTP/1.0\r\nconnection: keep-alive\r\n\r\n", "keep-alive"),
        ):
            async with await stage.connect() as client:
                for _ in range(1 if connection == "close" else 2):
                    client.send(line)
                    answer = await client.answer()
                    assert (answer.status, answer.fields.get("connection")) == (200, connection)
                if connection == "close":
                    assert await client.rest() == b""

    on_stage(play)


def test_a_half_closed_client_receives_its_answer() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as client:
            client.send(request_bytes("GET", "/v0/health"))
            client.writer.write_eof()
            assert (await client.answer()).status == 200
            assert await client.rest() == b""

    on_stage(play)


def test_head_has_the_length_and_no_body() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as client:
            client.send(b"HEAD /v0/health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            answer = await client.rest()
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.endswith(b"\r\n\r\n")
            assert b"content-length: " in answer

    on_stage(play)


def test_gzip_is_used_only_on_request() -> None:
    async def play(stage: SupervisorParts) -> None:
        plain = await stage.ask("GET", "/v0/metrics")
        assert plain.body.startswith(b"# HELP topics_ready")
        packed = await stage.ask("GET", "/v0/metrics", None, "accept-encoding: br, gzip")
        assert packed.fields["content-encoding"] == "gzip"
        assert gzip.decompress(packed.body).startswith(b"# HELP topics_ready")

    on_stage(play)


def test_answers_do_not_name_the_server_software() -> None:
    async def play(stage: SupervisorParts) -> None:
        answer = await stage.ask("GET", "/v0/health")
        assert set(answer.fields) == {"content-type", "content-length"}

    on_stage(play)


def test_keys_are_required_except_for_probes() -> None:
    async def play(stage: SupervisorParts) -> None:
        reader, writer = "authorization: Bearer reader-key-123456", "authorization: Bearer writer-key-123456"
        assert (await stage.ask("GET", "/v0/health")).status == 200
        answer = await stage.ask("GET", "/v0/topics")
        assert (answer.status, answer.json["error"]["code"]) == (401, "unauthorized")
        assert "www-authenticate" in answer.fields
        assert (await stage.ask("GET", "/v0/topics", None, "authorization: Bearer no")).status == 401
        assert (await stage.ask("GET", "/v0/metrics", None, writer)).status == 403
        listed = await stage.ask("GET", "/v0/topics?page_size=1000", None, reader)
        assert len(listed.json["topics"]) == 400
        assert {topic["topic"][:7] for topic in listed.json["topics"]} == {"orders."}
        # A client without access is refused before its body.
        async with await stage.connect() as client:
            client.send(
                request_bytes("DELETE", "/v0/routers/r", None, "expect: 100-continue", "content-length: 9")
            )
            assert (await client.answer()).status == 401
            assert await client.rest() == b""

    on_stage(play, api_keys=KEYS, list_shard=long_list)


def test_a_move_to_a_shard_that_is_down_is_503() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as client:
            await client.ask("GET", "/v0/health")
            for pid in stage.pool.pids():
                os.kill(pid, signal.SIGSTOP)
            await until(lambda: stage.pool.channels.any_ready() is None)
            answer = await client.ask("GET", "/v0/topics/a")
            assert (answer.status, answer.json["error"]["code"]) == (503, "not_ready")

    on_stage(play, times=SHORT_TIMES)


def test_an_unexpected_error_is_500_with_an_id(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(self: ControlEndpoints, *given: Any) -> None:
        raise ZeroDivisionError("secret of the inside")

    monkeypatch.setattr(ControlEndpoints, "answer", broken)

    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as client:
            answer = await client.ask("GET", "/v0/health")
            assert (answer.status, answer.json["error"]["code"]) == (500, "internal")
            assert b"secret" not in answer.body
            assert await client.rest() == b""
            [error_id] = [word for word in answer.json["error"]["message"].split() if len(word) == 8]
            assert error_id in caplog.text

    on_stage(play)


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_gate, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(control_gate, "IDLE_SECONDS", 0.4)


@pytest.mark.usefixtures("short_times")
def test_an_idle_connection_is_closed_and_a_slow_head_is_408() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as idle, await stage.connect() as slow:
            assert (await idle.ask("GET", "/v0/health")).status == 200
            assert (await slow.ask("GET", "/v0/health")).status == 200
            slow.send(b"GET /v0/health HTTP/1.1\r\nhost")
            assert (await slow.answer()).status == 408
            assert await idle.rest() == b""

    on_stage(play)


@pytest.mark.usefixtures("short_times")
def test_a_body_that_arrives_too_slowly_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_gate, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(
        control_gate, "is_too_slow", lambda seconds, size, is_body: seconds > 0.3 and size < 5
    )

    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as slow, await stage.connect() as steady:
            for client, begun in ((slow, b"abc"), (steady, b"abcdef")):
                client.send(request_bytes("DELETE", "/v0/routers/r", None, "content-length: 9") + begun)
            assert (await slow.answer()).status == 408
            assert await slow.rest() == b""
            steady.send(b"ghi")
            assert (await steady.answer()).status == 400

    on_stage(play)


@pytest.mark.parametrize("last", [(), ("connection: close",)])
def test_a_client_that_does_not_read_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, last: tuple[str, ...]
) -> None:
    monkeypatch.setattr(control_gate, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr("shared.http.client_speed.CLIENT_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(Outflow.is_stuck, "__defaults__", (0.5,))

    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as client:
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            client.send(request_bytes("GET", "/v0/topics?page_size=1000") * 2000)
            client.send(request_bytes("GET", "/v0/topics?page_size=1000", None, *last))
            await until(lambda: stage.controls.count == 1)
            await until(lambda: stage.controls.count == 0)

    on_stage(play, list_shard=long_list)


def test_a_shutdown_closes_idle_connections_and_answers_the_others() -> None:
    async def slow(shard: int, prefix: str, after: str, limit: int) -> list[dict[str, Any]] | None:
        await asyncio.sleep(0.3)
        return []

    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as idle, await stage.connect() as busy:
            await idle.ask("GET", "/v0/health")
            await busy.ask("GET", "/v0/health")
            busy.send(request_bytes("GET", "/v0/topics"))
            await asyncio.sleep(0.1)
            await stage.controls.close()
            assert await idle.rest() == b""
            assert json.loads((await busy.answer()).body)["topics"] == []
            assert await busy.rest() == b""

    on_stage(play, list_shard=slow)
