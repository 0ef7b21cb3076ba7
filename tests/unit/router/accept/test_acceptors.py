"""Several acceptors before one supervisor, as processes, with fake workers."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.clients.raw_client import request_bytes
from tests.harness.server.processes import is_alive, wait_until
from tests.harness.server.supervisor_parts import SHORT_TIMES, TIMES, SupervisorProcess, ask

pytestmark = pytest.mark.slow

FRONTS = 2


def started(folder: Path, **given: object) -> SupervisorProcess:
    return SupervisorProcess(folder, fronts=FRONTS, **given)  # type: ignore[arg-type]


def accepting(front: SupervisorProcess) -> list[int]:
    """The acceptors, once each of them accepts."""
    front.wait_until_ready()
    wait_until(lambda: front.log.read_text().count("acceptor: accepting connections") >= FRONTS)
    return front.acceptor_pids()


def metric(port: int, name: str) -> int:
    lines = ask(port, "GET", "/v0/metrics").body.decode().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"topics_front_{name} "))


class Load:
    """Clients that ask over and over, one connection a request, until one of them is refused."""

    def __init__(self, port: int, path: str, count: int = 8) -> None:
        self.outcomes: list[int | str] = []
        self._port = port
        self._path = path
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _ask(self) -> None:
        while not self._is_over.is_set():
            try:
                self.outcomes.append(ask(self._port, "GET", self._path).status)
            except ConnectionRefusedError:
                self.outcomes.append("refused")
                return
            except OSError as error:
                self.outcomes.append(type(error).__name__)

    def wait_for(self, more: int) -> None:
        count = len(self.outcomes) + more
        wait_until(lambda: len(self.outcomes) >= count)

    def end(self) -> list[int | str]:
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        return self.outcomes


def test_acceptors_share_connections_and_their_counts_are_summed(tmp_path: Path) -> None:
    with started(tmp_path) as front:
        assert len(accepting(front)) == FRONTS
        port = front.port
        before = metric(port, "connections_accepted_total")
        for _ in range(50):
            assert ask(port, "GET", "/v0/topics/a").status == 200
            assert ask(port, "GET", "/v0/health").status == 200
        wait_until(lambda: metric(port, "connections_accepted_total") >= before + 100)
        # Acceptors publish their counts at their heartbeats.
        wait_until(lambda: metric(port, "connections_handed_over_total") >= 50)


def test_a_connection_moves_from_the_supervisor_to_a_worker(tmp_path: Path) -> None:
    with started(tmp_path) as front:
        accepting(front)
        with socket.create_connection(("127.0.0.1", front.port)) as connection:
            for path in ("/v0/health", "/v0/ready", "/v0/topics/a"):
                connection.sendall(request_bytes("GET", path))
                assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_connections_of_a_dead_acceptor_wait_for_the_next(tmp_path: Path) -> None:
    with started(tmp_path) as front:
        victims = accepting(front)
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        clients = [socket.create_connection(("127.0.0.1", front.port), timeout=20) for _ in range(40)]
        for number, client in enumerate(clients):
            client.sendall(request_bytes("GET", "/v0/topics/a" if number % 2 else "/v0/health"))
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        for client in clients:
            with closing(client):
                assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert not set(front.acceptor_pids()) & set(victims)


def test_the_supervisor_accepts_while_no_acceptor_can_be_started(tmp_path: Path) -> None:
    never = TIMES._replace(backoff_first_seconds=600.0, backoff_max_seconds=600.0)
    with started(tmp_path, times=never) as front:
        for pid in accepting(front):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not front.acceptor_pids())
        load = Load(front.port, "/v0/topics/a", count=4)
        load.wait_for(100)
        assert ask(front.port, "GET", "/v0/health").status == 200
        assert set(load.end()) == {200}


def test_the_supervisor_accepts_for_a_hung_acceptor_until_it_resumes(tmp_path: Path) -> None:
    with started(tmp_path, times=TIMES._replace(fresh_seconds=SHORT_TIMES.fresh_seconds)) as front:
        victims = accepting(front)
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        load = Load(front.port, "/v0/topics/a", count=4)
        load.wait_for(100)
        for pid in victims:
            os.kill(pid, signal.SIGCONT)
        load.wait_for(100)
        assert set(load.end()) == {200}
        assert sorted(front.acceptor_pids()) == sorted(victims)


def test_a_killed_acceptor_loses_only_the_connections_it_was_reading(tmp_path: Path) -> None:
    with started(tmp_path) as front:
        victims = accepting(front)
        port = front.port
        load = Load(port, "/v0/topics/a")
        load.wait_for(200)
        accepted = metric(port, "connections_accepted_total")
        os.kill(victims[0], signal.SIGKILL)
        load.wait_for(400)
        wait_until(lambda: metric(port, "restarts_total") == 1)
        # What the dead one had counted is not forgotten.
        assert metric(port, "connections_accepted_total") >= accepted
        outcomes = load.end()
    lost = [outcome for outcome in outcomes if outcome != 200]
    assert set(lost) <= {"ConnectionResetError", "ConnectionEnded"}
    # Each client can have been read by the dead one once.
    assert len(lost) <= 8


def test_a_hung_acceptor_is_replaced_and_clients_only_wait(tmp_path: Path) -> None:
    with started(tmp_path, times=SHORT_TIMES) as front:
        victims = accepting(front)
        os.kill(victims[0], signal.SIGSTOP)
        load = Load(front.port, "/v0/topics/a", count=4)
        wait_until(lambda: victims[0] not in front.acceptor_pids())
        load.wait_for(50)
        assert set(load.end()) == {200}


def test_a_stop_answers_or_refuses_all_and_ends_the_acceptors(tmp_path: Path) -> None:
    with started(tmp_path, worker={"drain_seconds": 0.3}) as front:
        pids = [*accepting(front), *front.child_pids()]
        silent = socket.create_connection(("127.0.0.1", front.port), timeout=20)
        load = Load(front.port, "/v0/topics/a")
        load.wait_for(100)
        front.signal(signal.SIGTERM)
        assert front.wait() == 0
        outcomes = load.end()
        with closing(silent):
            assert silent.recv(4096).startswith(b"HTTP/1.1 503 ")
        assert not any(is_alive(pid) for pid in pids)
    assert set(outcomes) <= {200, 503, "refused"}


def test_acceptors_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with started(tmp_path) as front:
        accepting(front)
        children, port = front.child_pids(), front.port
        assert len(children) == 2 + FRONTS
        front.signal(signal.SIGKILL)
        front.wait()
        wait_until(lambda: not any(is_alive(pid) for pid in children))
    with started(tmp_path, port=port) as again:
        accepting(again)
        assert again.port == port


def test_a_second_server_is_refused_with_several_acceptors_too(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with started(tmp_path) as front:
        accepting(front)
        with SupervisorProcess(tmp_path / "other", port=front.port, fronts=FRONTS) as other:
            assert other.wait() == 1
            assert "address in use" in other.log.read_text()


def test_a_shard_that_is_down_is_503_through_every_acceptor(tmp_path: Path) -> None:
    slow = TIMES._replace(backoff_first_seconds=2.0, backoff_max_seconds=2.0)
    with started(tmp_path, times=slow) as front:
        acceptors = accepting(front)
        for pid in set(front.child_pids()) - set(acceptors):
            os.kill(pid, signal.SIGKILL)
        load = Load(front.port, "/v0/topics/a", count=4)
        wait_until(lambda: 503 in load.outcomes)
        wait_until(lambda: load.outcomes[-1] == 200)
        deadline = time.monotonic() + 0.5
        wait_until(lambda: time.monotonic() > deadline)
        assert set(load.end()) <= {200, 503}
