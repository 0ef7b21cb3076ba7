"""The pool of workers, with fake workers as real processes."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from router.accept.worker_channels import silence_ms
from router.supervision import worker_process
from router.supervision.process_pool import Backoff
from router.supervision.worker_process import WorkerProcess
from shared.contract.errors import NOT_READY, SHUTTING_DOWN, STORAGE_FAILED
from shared.ipc.board import Board, WorkerState
from shared.ipc.handoff import send_connection
from shared.runtime.clock import SystemClock
from tests.harness.server.processes import is_alive
from tests.harness.server.supervisor_parts import (
    END_SOON,
    FAKE_WORKER,
    SHORT_TIMES,
    TIMES,
    SupervisorParts,
    environment,
    until,
)

pytestmark = pytest.mark.slow

Play = Callable[[SupervisorParts], Coroutine[Any, Any, None]]


def on_stage(play: Play, **given: Any) -> None:
    async def run() -> None:
        async with SupervisorParts(**given) as stage:
            await play(stage)

    uvloop.run(run())


def code_of(stage: SupervisorParts, shard: int) -> str | None:
    refusal = stage.pool.refusal(shard)
    return None if refusal is None else refusal.code


def test_a_killed_worker_is_restarted_and_the_others_keep_running() -> None:
    async def play(stage: SupervisorParts) -> None:
        await stage.ready()
        first, other = stage.pid(0), stage.pid(1)
        for count in (1, 2):
            os.kill(stage.pid(0), signal.SIGKILL)
            await until(lambda: stage.pool.restart_count(0) == count)  # noqa: B023
            assert code_of(stage, 0) == NOT_READY
            await stage.ready()
        assert stage.pid(0) != first
        assert stage.pid(1) == other
        assert stage.pool.restart_count(1) == 0

    on_stage(play)


def test_a_replaying_worker_is_not_ready_and_not_killed() -> None:
    async def play(stage: SupervisorParts) -> None:
        await until(lambda: stage.board.slot(0).state is WorkerState.REPLAYING)
        assert code_of(stage, 0) == NOT_READY
        assert not stage.pool.was_ready(0)
        await stage.ready()
        assert stage.pool.was_ready(0)
        assert stage.pool.restart_count(0) == 0

    on_stage(play, shard_count=1, worker={"ready_after": SHORT_TIMES.hung_seconds * 1.5}, times=SHORT_TIMES)


def test_a_worker_without_a_heartbeat_is_killed_and_restarted() -> None:
    async def play(stage: SupervisorParts) -> None:
        await until(lambda: stage.board.slot(0).pid)
        os.kill(stage.pid(0), signal.SIGSTOP)
        await until(lambda: stage.pool.restart_count(0) == 1)

    on_stage(play, shard_count=1, worker={"ready_after": 60}, times=END_SOON._replace(start_seconds=1.0))


def test_a_worker_that_waits_for_its_disk_is_not_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    async def play(stage: SupervisorParts) -> None:
        await until(lambda: stage.board.slot(0).state is WorkerState.READY)
        pid = stage.pid(0)
        # Twice the time after which a hung worker is killed.
        await until(lambda: silence_ms(stage.board.slot(0), SystemClock()) > SHORT_TIMES.hung_seconds * 2000)
        assert stage.pool.all_alive()
        assert stage.pool.restart_count(0) == 0
        os.close(os.open(fifo, os.O_WRONLY))
        await stage.ready()
        assert (stage.pid(0), stage.pool.restart_count(0)) == (pid, 0)

    on_stage(play, shard_count=1, worker={"disk_wait": str(fifo)}, times=SHORT_TIMES)
    assert caplog.text.count("worker: no heartbeat, not killed: waiting for its disk") == 1


def test_a_worker_that_refuses_is_not_restarted_and_its_reason_stays() -> None:
    async def play(stage: SupervisorParts) -> None:
        await until(lambda: stage.board.slot(0).state is WorkerState.REFUSED)
        await asyncio.sleep(0.3)
        assert stage.pool.pids() == []
        assert stage.pool.restart_count(0) == 0
        refusal = stage.pool.refusal(0)
        assert refusal is not None
        assert refusal.code == STORAGE_FAILED
        assert (
            refusal.message
            == "shard 0 does not start because its data is damaged or cannot be used; see the server's log"
        )
        assert refusal.retry_after_ms is None
        assert stage.board.slot(0).reason == "wal-1 is damaged"
        assert stage.pool.all_alive()

    on_stage(play, shard_count=1, worker={"exit_code": 3, "reason": "wal-1 is damaged"})


def test_a_worker_that_crashes_during_its_start_is_restarted_with_growing_waits() -> None:
    async def play(stage: SupervisorParts) -> None:
        await until(lambda: stage.pool.restart_count(0) == 3)
        assert stage.board.slot(0).reason == "exited with code 7: no luck"
        assert code_of(stage, 0) == NOT_READY

    on_stage(play, shard_count=1, worker={"exit_code": 7, "reason": "no luck"})


def test_the_cause_of_a_restart_is_reported_until_the_worker_is_ready() -> None:
    async def play(stage: SupervisorParts) -> None:
        for count in (1, 2):
            await until(lambda: stage.board.slot(0).state is WorkerState.REPLAYING)
            os.kill(stage.pid(0), signal.SIGKILL)
            await until(lambda: stage.pool.restart_count(0) == count)  # noqa: B023
            await until(lambda: stage.board.slot(0).state is WorkerState.REPLAYING)
            assert stage.board.slot(0).reason == "killed by SIGKILL"
        assert b"killed by SIGKILL" in (await stage.ask("GET", "/v0/ready")).body

    on_stage(play, shard_count=1, worker={"ready_after": 60}, times=END_SOON)


def test_connections_sent_to_a_dead_worker_are_refused() -> None:
    async def play(stage: SupervisorParts) -> None:
        await stage.ready()
        os.kill(stage.pid(0), signal.SIGKILL)
        await until(lambda: stage.pool.restart_count(0) == 1)
        client, accepted = socket.socketpair()
        # As from an acceptor that has not looked at the board since.
        assert send_connection(stage.pool.senders[0], accepted.fileno(), b"GET / HTTP/1.1\r\n")
        accepted.close()
        client.setblocking(False)
        answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 4096), 10)
        assert answer.startswith(b"HTTP/1.1 503 ")
        client.close()

    on_stage(play, shard_count=1, times=TIMES._replace(backoff_first_seconds=60, backoff_max_seconds=60))


def test_a_worker_that_cannot_be_spawned_is_retried(tmp_path: Path) -> None:
    command = tmp_path / "worker"
    command.write_text(f'#!/bin/sh\nexec {shlex.join(FAKE_WORKER)} "$@"\n')
    command.chmod(0o700)

    async def play(stage: SupervisorParts) -> None:
        await stage.ready()
        command.rename(tmp_path / "elsewhere")
        os.kill(stage.pid(0), signal.SIGKILL)
        await until(lambda: stage.pool.restart_count(0) == 3)
        assert "cannot start" in stage.board.slot(0).reason
        (tmp_path / "elsewhere").rename(command)
        await stage.ready()

    on_stage(play, shard_count=1, command=(str(command),))


def test_a_failed_disk_is_reported_as_storage_failed() -> None:
    async def play(stage: SupervisorParts) -> None:
        await stage.ready()
        stage.board.slot(0).state = WorkerState.FAILED
        assert code_of(stage, 0) == STORAGE_FAILED
        stage.board.slot(0).state = WorkerState.READY

    on_stage(play, shard_count=1)


def test_a_drain_ends_all_workers_in_order() -> None:
    async def play(stage: SupervisorParts) -> None:
        await stage.ready()
        pids = stage.pool.pids()
        assert await stage.pool.drain()
        assert stage.pool.pids() == []
        assert not any(is_alive(pid) for pid in pids)
        assert stage.pool.all_alive()
        assert code_of(stage, 0) == SHUTTING_DOWN
        await asyncio.sleep(0.1)
        assert stage.pool.pids() == []

    on_stage(play)


def test_a_drain_restarts_no_worker() -> None:
    async def play(stage: SupervisorParts) -> None:
        await until(lambda: stage.pool.restart_count(0) == 1)
        assert await stage.pool.drain()
        count = stage.pool.restart_count(0)
        await asyncio.sleep(0.2)
        assert (stage.pool.restart_count(0), stage.pool.pids()) == (count, [])

    on_stage(play, shard_count=1, worker={"exit_code": 7}, times=TIMES._replace(backoff_first_seconds=0.1))


def test_a_worker_that_does_not_stop_is_terminated_at_the_deadline() -> None:
    async def play(stage: SupervisorParts) -> None:
        await stage.ready()
        started = asyncio.get_running_loop().time()
        # The fake worker has no handler for SIGTERM, which ends it.
        assert not await stage.pool.drain()
        assert asyncio.get_running_loop().time() - started >= 0.3

    on_stage(play, shard_count=1, worker={"ignores_drain": True}, times=TIMES._replace(drain_seconds=0.3))


def test_a_hung_worker_is_killed_during_a_drain_too() -> None:
    async def play(stage: SupervisorParts) -> None:
        await stage.ready()
        os.kill(stage.pid(0), signal.SIGSTOP)
        await stage.pool.drain()
        assert stage.pool.restart_count(0) == 0

    on_stage(play, shard_count=1, times=SHORT_TIMES)


def test_a_hastened_drain_skips_the_wait_for_the_deadline() -> None:
    async def play(stage: SupervisorParts) -> None:
        await stage.ready()
        draining = asyncio.create_task(stage.pool.drain())
        await asyncio.sleep(0.1)
        assert not draining.done()
        stage.pool.hasten()
        async with asyncio.timeout(5):
            assert not await draining

    on_stage(play, shard_count=1, worker={"drain_seconds": 60})


def test_a_pause_of_this_process_kills_no_worker() -> None:
    async def play(stage: SupervisorParts) -> None:
        await stage.ready()
        pid = stage.pid(0)
        os.kill(pid, signal.SIGSTOP)
        # Both stand still, as when the whole machine does.
        time.sleep(SHORT_TIMES.hung_seconds * 1.5)  # noqa: ASYNC251
        await asyncio.sleep(SHORT_TIMES.tick_seconds * 3)
        os.kill(pid, signal.SIGCONT)
        await stage.ready()
        assert stage.pid(0) == pid
        assert stage.pool.restart_count(0) == 0

    on_stage(play, shard_count=1, times=SHORT_TIMES)


def test_variables_of_systemd_are_not_passed_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    class NeverRuns:
        def __init__(self, command: object, env: dict[str, str], **given: object) -> None:
            seen.append(env)
            raise FileNotFoundError("none")

    monkeypatch.setattr(worker_process.subprocess, "Popen", NeverRuns)

    async def run() -> None:
        board = Board.create(1)
        given = {**environment(), "NOTIFY_SOCKET": "/x", "LISTEN_FDS": "1", "WATCHDOG_USEC": "1"}
        with pytest.raises(FileNotFoundError):
            WorkerProcess(FAKE_WORKER, given, "SPEC", {"shard": 0}, (board.fd,), lambda process: None)
        board.close()
        os.close(board.fd)

    uvloop.run(run())
    assert not {"NOTIFY_SOCKET", "LISTEN_FDS", "WATCHDOG_USEC"} & set(seen[0])
    assert '"shard":0' in seen[0]["SPEC"]


def test_a_worker_inherits_only_its_channel_and_the_board() -> None:
    async def play(stage: SupervisorParts) -> None:
        await stage.ready()
        kinds = []
        for fd in os.listdir(f"/proc/{stage.pid(0)}/fd"):
            target = os.readlink(f"/proc/{stage.pid(0)}/fd/{fd}")
            kinds.append(target.split(":")[0].split("/")[-1] if int(fd) > 2 else "")
        # Its loop has an epoll and a pair of sockets of its own.
        assert kinds.count("socket") == 3
        assert not any("TCP" in kind for kind in kinds)

    on_stage(play)


def test_a_healthy_run_resets_the_wait() -> None:
    backoff = Backoff(1.0, 4.0, healthy_seconds=30.0)
    assert [backoff.ended(0.0), backoff.ended(29.9), backoff.ended(30.0), backoff.ended(0.0)] == [1, 2, 1, 2]
