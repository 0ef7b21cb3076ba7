"""The whole supervisor as a process, with fake workers: signals, kills, and what is left over."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from tests.harness.clients.raw_client import request_bytes
from tests.harness.server.processes import is_alive, wait_until
from tests.harness.server.supervisor_parts import SupervisorProcess, ask

pytestmark = pytest.mark.slow


def test_server_serves_and_stops_in_order(tmp_path: Path) -> None:
    with SupervisorProcess(tmp_path) as front:
        front.wait_until_ready()
        workers = front.child_pids()
        assert len(workers) == 2
        assert front.ask("GET", "/v0/topics/a").json["pid"] in workers
        front.signal(signal.SIGTERM)
        assert front.wait() == 0
        assert not any(is_alive(pid) for pid in workers)
        assert not (tmp_path / "port").exists()


def test_clients_are_refused_while_workers_start(tmp_path: Path) -> None:
    with SupervisorProcess(tmp_path, worker={"ready_after": 2}) as front:
        answer = front.ask("GET", "/v0/topics/a")
        assert (answer.status, answer.fields["retry-after"]) == (503, "1")
        ready = front.ask("GET", "/v0/ready")
        assert ready.json["error"]["detail"]["replay_progress"] in (0.0, 0.2, 0.4)
        assert front.ask("GET", "/v0/health").status == 200
        front.wait_until_ready()


def test_a_second_server_at_the_same_port_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with (
        SupervisorProcess(tmp_path) as front,
        SupervisorProcess(tmp_path / "other", port=front.port) as other,
    ):
        assert other.wait() == 1
        assert "address in use" in other.log.read_text()
        assert front.ask("GET", "/v0/health").status == 200


def test_requests_during_a_stop_are_answered_or_refused(tmp_path: Path) -> None:
    with SupervisorProcess(tmp_path, worker={"drain_seconds": 0.3}) as front:
        port = front.wait_until_ready().port
        outcomes: list[int | str] = []
        stopped = threading.Event()

        def load() -> None:
            while not stopped.is_set():
                try:
                    outcomes.append(ask(port, "GET", "/v0/topics/a").status)
                except ConnectionRefusedError:
                    outcomes.append("refused")
                    return
                except OSError as error:
                    outcomes.append(type(error).__name__)

        threads = [threading.Thread(target=load) for _ in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(outcomes) > 100)
        front.signal(signal.SIGTERM)
        assert front.wait() == 0
        stopped.set()
        for thread in threads:
            thread.join()
    assert set(outcomes) <= {200, 503, "refused"}


def test_a_second_signal_skips_the_wait(tmp_path: Path) -> None:
    with SupervisorProcess(tmp_path, worker={"ignores_drain": True}) as front:
        front.wait_until_ready()
        workers = front.child_pids()
        front.signal(signal.SIGINT)
        wait_until(lambda: "stopping" in front.log.read_text())
        front.signal(signal.SIGTERM)
        assert front.wait() == 1
        assert not any(is_alive(pid) for pid in workers)


def test_workers_of_a_killed_supervisor_drain_and_exit(tmp_path: Path) -> None:
    with SupervisorProcess(tmp_path) as front:
        port = front.wait_until_ready().port
        workers = front.child_pids()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(request_bytes("GET", "/v0/topics/a"))
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
            front.signal(signal.SIGKILL)
            front.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in workers))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_nothing_is_left_after_all_processes_are_killed(tmp_path: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    files = set(tmp_path.iterdir())
    with SupervisorProcess(tmp_path) as front:
        port = front.wait_until_ready().port
        workers = front.child_pids()
        for pid in (front.pid, *workers):
            os.kill(pid, signal.SIGKILL)
        front.wait()
    wait_until(lambda: not any(is_alive(pid) for pid in workers))
    assert set(os.listdir("/dev/shm")) <= before
    assert {path.name for path in set(tmp_path.iterdir()) - files} == {"port", "log"}
    with SupervisorProcess(tmp_path, port=port) as again:
        again.wait_until_ready()
        assert again.port == port


def test_restarted_workers_leave_no_zombies(tmp_path: Path) -> None:
    with SupervisorProcess(tmp_path) as front:
        front.wait_until_ready()
        for _ in range(3):
            victims = front.child_pids()
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not set(victims) & set(front.child_pids()))  # noqa: B023
            wait_until(lambda: front.ask("GET", "/v0/topics/a").status == 200)
        assert all(is_alive(pid) for pid in front.child_pids())


def test_a_server_whose_shards_all_refuse_logs_why(tmp_path: Path) -> None:
    with SupervisorProcess(tmp_path, worker={"exit_code": 3, "reason": "wal-1 is damaged"}) as front:
        wait_until(lambda: front.ask("GET", "/v0/ready").body.count(b'"refused"') == 2)
        assert front.ask("GET", "/v0/ready?allow_degraded=true").status == 503
        assert "wal-1 is damaged" in front.log.read_text()
        answer = front.ask("GET", "/v0/topics/a")
        assert (answer.status, answer.json["error"]["code"]) == (503, "storage_failed")
        assert "retry-after" not in answer.fields
        anywhere = front.ask("GET", "/v0/ws")
        assert (anywhere.status, anywhere.json["error"]["code"]) == (503, "not_ready")
        assert "retry-after" not in anywhere.fields
        assert b"wal-1" not in answer.body
        front.signal(signal.SIGTERM)
        assert front.wait() == 0
