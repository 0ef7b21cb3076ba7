"""Connections through the supervisor to fake workers, over real sockets."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated

from router.accept.placer import refusal_of
from shared.http.http2_preface import PREFACE, REJECTION
from tests.harness.clients.raw_client import request_bytes
from tests.harness.server.supervisor_parts import (
    END_SOON,
    SHORT_TIMES,
    TIMES,
    SupervisorParts,
    connect,
    until,
)
from tests.harness.server.whole_server import name_on

pytestmark = pytest.mark.slow

TOPICS = [name_on(shard, 2, "topic-") for shard in range(2)]

Stage = Callable[[SupervisorParts], Coroutine[Any, Any, None]]


def on_stage(play: Stage, **given: Any) -> None:
    async def run() -> None:
        async with SupervisorParts(**given) as stage:
            await play(await stage.ready())

    uvloop.run(run())


def test_a_connection_goes_to_the_owner_of_its_first_topic_and_stays_there() -> None:
    async def play(stage: SupervisorParts) -> None:
        for shard in (0, 1):
            async with await stage.connect() as client:
                for path in (
                    f"/v0/topics/{TOPICS[shard]}",
                    f"/v0/topics/{TOPICS[1 - shard]}",
                    "/nix",
                ):
                    answer = await client.ask("GET", path)
                    assert answer.json["shard"] == shard
                    assert answer.json["request"].startswith(f"GET {path} HTTP/1.1\r\nhost: localhost")

    on_stage(play)


def test_a_request_line_may_arrive_byte_by_byte() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as client:
            whole = request_bytes("GET", f"/v0/topics/{TOPICS[1]}")
            for at in range(len(whole)):
                client.send(whole[at : at + 1])
                await asyncio.sleep(0.001)
            assert (await client.answer()).json["shard"] == 1

    on_stage(play)


def test_no_pipelined_request_is_lost() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as client:
            client.send(
                b"".join(
                    request_bytes("GET", f"/v0/topics/{TOPICS[0]}", None, f"n: {n}") for n in range(3000)
                )
            )
            for number in range(3000):
                assert (await client.answer()).json["request"].endswith(f"n: {number}")

    on_stage(play)


WITHOUT_OWNER = (
    b"GET /nowhere HTTP/1.1\r\n\r\n",
    b"TRACE /v0/topics/a HTTP/1.1\r\n\r\n",
    b"GET /v0/topics/a%20b HTTP/1.1\r\n\r\n",
    b"GET /v0/topics/a HTTP/2.0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\n",
    b"\r\n\r\n",
    b"GET /v0/topics/a HTTP/1.1\n\n",
    b"GET /v0/topics/" + b"a" * 8200,
)


def test_a_request_without_an_owner_goes_to_any_worker() -> None:
    async def play(stage: SupervisorParts) -> None:
        seen = set()
        for data in WITHOUT_OWNER:
            async with await stage.connect() as client:
                client.send(data)
                answer = await client.answer()
                assert answer.json["request"].encode().startswith(data[:20].rstrip())
                seen.add(answer.json["shard"])
        assert seen == {0, 1}

    on_stage(play)


def test_a_request_without_an_owner_is_refused_here_while_no_worker_is_ready() -> None:
    async def run() -> None:
        async with SupervisorParts(worker={"ready_after": 60}, times=END_SOON) as stage:
            for path, status in (("/nowhere", 404), ("/v0/topics/a%20b", 400)):
                answer = await stage.ask("GET", path)
                assert answer.status == status
                assert answer.fields["connection"] == "close"

    uvloop.run(run())


def test_an_http_2_client_receives_goaway_while_no_worker_is_ready() -> None:
    async def run() -> None:
        async with (
            SupervisorParts(worker={"ready_after": 60}, times=END_SOON) as stage,
            await stage.connect() as client,
        ):
            client.send(PREFACE)
            assert await client.rest() == REJECTION
            wire = H2Connection(H2Configuration())
            wire.initiate_connection()
            last = wire.receive_data(REJECTION)[-1]
            assert isinstance(last, ConnectionTerminated)
            # No stream was processed: the client may send all of them again.
            assert (last.last_stream_id, last.error_code) == (0, 0)

    uvloop.run(run())


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET /nowhere HTTP/1.1\r\n", "not_found"),
        (b"PATCH /v0/topics HTTP/1.1\r\n", "method_not_allowed"),
        (b"BREW /v0/topics HTTP/1.1\r\n", "not_implemented"),
        (b"GET / HTTP/3.0\r\n", "http_version_not_supported"),
        (b"GET /v0/topics/a%20b HTTP/1.1\r\n", "invalid_request"),
        (b"GET / HTTP/1.1\n", "invalid_request"),
        (b"\r\n", "invalid_request"),
        (b"\n", "invalid_request"),
        (b"x" * 9000, "uri_too_long"),
        (b"GET /v0/watch/w HTTP/1.1\r\n", "not_ready"),
        (b"POST /v0/watch HTTP/1.1\r\n", "not_ready"),
        (b"GET /v0/ws HTTP/1.1\r\n", "not_ready"),
    ],
)
def test_each_request_without_an_owner_has_its_error_code(data: bytes, code: str) -> None:
    assert refusal_of(data).code == code


def test_a_shard_that_is_not_ready_is_503_and_the_others_serve() -> None:
    async def play(stage: SupervisorParts) -> None:
        os.kill(stage.pid(0), signal.SIGKILL)
        await until(lambda: not stage.pool.is_serving(0))
        answer = await stage.ask("GET", f"/v0/topics/{TOPICS[0]}")
        assert answer.status == 503
        assert answer.fields["retry-after"] == "1"
        assert answer.fields["connection"] == "close"
        assert answer.json["error"]["code"] == "not_ready"
        assert answer.json["error"]["detail"] == {"shard": 0, "retry_after_ms": 1000}
        assert (await stage.ask("GET", f"/v0/topics/{TOPICS[1]}")).json["shard"] == 1
        await stage.ready()
        assert (await stage.ask("GET", f"/v0/topics/{TOPICS[0]}")).json["pid"] == stage.pid(0)
        assert stage.pool.restart_count(0) == 1

    on_stage(play, times=TIMES._replace(backoff_first_seconds=0.5, backoff_max_seconds=0.5))


def test_a_refusal_reaches_a_client_that_is_still_sending() -> None:
    async def play(stage: SupervisorParts) -> None:
        os.kill(stage.pid(0), signal.SIGKILL)
        await until(lambda: not stage.pool.is_serving(0))
        for _ in range(20):
            async with await stage.connect() as client:
                client.send(request_bytes("POST", f"/v0/topics/{TOPICS[0]}", bytes(4 << 20)))
                assert (await client.answer()).status == 503

    on_stage(play, times=TIMES._replace(backoff_first_seconds=5.0))


def test_connections_not_received_by_a_hung_worker_are_refused_and_it_is_killed() -> None:
    async def play(stage: SupervisorParts) -> None:
        hung = stage.pid(0)
        os.kill(hung, signal.SIGSTOP)
        clients = [await stage.connect() for _ in range(20)]
        for client in clients:
            client.send(request_bytes("GET", f"/v0/topics/{TOPICS[0]}"))
        for client in clients:
            assert (await client.answer()).status == 503
            await client.close()
        assert (await stage.ask("GET", f"/v0/topics/{TOPICS[1]}")).json["shard"] == 1
        await until(lambda: stage.pool.restart_count(0) == 1)
        await stage.ready()
        assert stage.pid(0) != hung
        assert (await stage.ask("GET", f"/v0/topics/{TOPICS[0]}")).status == 200
        assert stage.router.handed_over_count == 2

    on_stage(play, times=SHORT_TIMES)


def test_connections_not_received_by_a_dead_worker_are_refused() -> None:
    async def play(stage: SupervisorParts) -> None:
        clients = [await stage.connect() for _ in range(5)]
        for client in clients:
            client.send(request_bytes("GET", f"/v0/topics/{TOPICS[1]}"))
        await until(lambda: stage.router.handed_over_count == 5)
        os.kill(stage.pid(1), signal.SIGKILL)
        for client in clients:
            assert (await client.answer()).status == 503
            await client.close()

    on_stage(play, worker={"deaf": True}, times=END_SOON)


def test_many_connections_wait_for_a_full_channel_and_are_served() -> None:
    async def play(stage: SupervisorParts) -> None:
        async def one(number: int) -> None:
            # So much that the channel holds few of them.
            fields = [f"x{index}: {'y' * 4000}" for index in range(7)]
            answer = await stage.ask("GET", f"/v0/topics/{TOPICS[0]}", None, *fields, f"n: {number}")
            assert answer.json["request"].endswith(f"n: {number}")

        await asyncio.gather(*(one(number) for number in range(400)))
        assert stage.router.waiting_count == 0
        assert stage.router.handed_over_count == 400

    on_stage(play)


def test_an_incomplete_line_is_408_and_a_silent_connection_is_closed() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as silent, await stage.connect() as slow:
            slow.send(b"GET /v0/top")
            assert (await slow.answer()).status == 408
            assert await slow.rest() == b""
            assert await silent.rest() == b""
        assert stage.router.waiting_count == 0

    on_stage(play, head_seconds=0.3)


def test_a_client_that_disconnects_before_its_line_is_forgotten() -> None:
    async def play(stage: SupervisorParts) -> None:
        clients = [await stage.connect() for _ in range(10)]
        clients[0].send(b"GET")
        await until(lambda: stage.router.waiting_count == 10)
        for client in clients:
            await client.close()
        await until(lambda: stage.router.waiting_count == 0)

    on_stage(play)


def test_connections_above_the_cap_are_refused() -> None:
    async def play(stage: SupervisorParts) -> None:
        waiting = [await stage.connect() for _ in range(3)]
        await until(lambda: stage.router.waiting_count == 3)
        async with await stage.connect() as client:
            assert (await client.answer()).status == 503
        for one in waiting:
            await one.close()

    on_stage(play, connections_max=3)


def test_connections_are_refused_when_no_descriptor_is_free() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as early:
            await until(lambda: stage.router.waiting_count == 1)
            clients = [socket.socket() for _ in range(5)]
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            probe = os.dup(0)
            os.close(probe)
            resource.setrlimit(resource.RLIMIT_NOFILE, (probe, limits[1]))
            try:
                for client in clients:
                    client.setblocking(False)
                    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", stage.port))
                    await asyncio.get_running_loop().sock_sendall(
                        client, request_bytes("GET", "/v0/topics/a")
                    )
                for client in clients:
                    answer = await asyncio.get_running_loop().sock_recv(client, 4096)
                    assert answer.startswith(b"HTTP/1.1 503 ")
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for client in clients:
                client.close()
            assert stage.accept_loop.refused_count == 5
            assert (await early.ask("GET", "/v0/topics/a")).status == 200
            assert (await stage.ask("GET", "/v0/topics/a")).status == 200

    on_stage(play)


def test_handed_over_connections_leave_no_descriptor_open() -> None:
    async def play(stage: SupervisorParts) -> None:
        await stage.ask("GET", "/v0/health")
        await until(lambda: stage.controls.count == 0)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            assert (await stage.ask("GET", f"/v0/topics/{TOPICS[0]}")).status == 200
        await until(lambda: len(os.listdir("/proc/self/fd")) == before)

    on_stage(play)


def test_a_stop_places_complete_requests_and_refuses_the_rest() -> None:
    async def play(stage: SupervisorParts) -> None:
        async with await stage.connect() as silent, await stage.connect() as begun:
            begun.send(b"GET /v0/top")
            await until(lambda: stage.router.waiting_count == 2)
            async with await connect(stage.port) as late:
                late.send(request_bytes("GET", f"/v0/topics/{TOPICS[0]}"))
                # Not accepted yet: the loop gets no turn between here and the close of the listener.
                await late.writer.drain()
                await stage.accept_loop.close(is_last=True)
                stage.router.stop()
                assert (await late.answer()).status == 200
            answer = await begun.answer()
            assert (answer.status, answer.json["error"]["code"]) == (503, "shutting_down")
            # Its request may have been on its way when the server began to stop.
            silent.send(request_bytes("GET", f"/v0/topics/{TOPICS[0]}"))
            assert (await silent.answer()).json["error"]["code"] == "shutting_down"
            with pytest.raises(ConnectionRefusedError):
                await connect(stage.port)

    on_stage(play)
