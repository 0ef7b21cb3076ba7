"""The supervisor is killed or stopped while clients write."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.books.process_ledger import book_of, seed_of_this_run
from tests.harness.clients.raw_client import RawClient, request_bytes
from tests.harness.clients.writer_clients import Writers
from tests.harness.server.whole_server import WholeServer, nothing_left_behind
from tests.harness.sweeps.attempts import attempt
from tests.harness.sweeps.crash_sweep import DEEP

ROUNDS = 20 if DEEP else 2
SHARDS = 2
DRAIN_SECONDS = 10
RECORD = b'{"records":[{"data":1}]}'

pytestmark = pytest.mark.slow


def test_workers_without_a_supervisor_answer_their_requests_and_a_new_server_starts(
    tmp_path: Path,
) -> None:
    seed = seed_of_this_run()
    book = book_of(SHARDS)
    server = WholeServer(tmp_path, "--wal-file-bytes=256KiB", shards=SHARDS)
    for number in range(ROUNDS):
        with (
            attempt("supervisor killed", f"TOPICS_TEST_SEED={seed}, round {number}"),
            ExitStack() as stack,
        ):
            with server:
                if number == 0:
                    book.make_topics(server.port)
                waiting = [stack.enter_context(_long_poll(server, shard)) for shard in range(SHARDS)]
                with Writers(server.port, book, f"{seed} {number}"):
                    time.sleep(0.4)
                    seconds = _kill_supervisor(server, waiting)
            print(f"all processes ended {seconds:.2f} s after the supervisor")
            book.crashed()
            with nothing_left_behind(tmp_path), server:
                book.check(server.port)
                assert server.stop() == 0


def _kill_supervisor(server: WholeServer, waiting: list[RawClient]) -> float:
    """Kill the supervisor, check that waiting requests are answered; return the seconds until all ended."""
    children = server.children()
    server.supervisor.signal(signal.SIGKILL)
    killed = time.monotonic()
    for client in waiting:
        answer = client.read_answer()
        assert answer.status == 200, answer
        assert answer.closes
        client.read_end()
    for child in children:
        assert child.wait(DRAIN_SECONDS + 5), f"process {child.pid} outlived the supervisor"
        child.close()
    server.process.wait()
    return time.monotonic() - killed


def _long_poll(server: WholeServer, shard: int) -> RawClient:
    """Open a connection that waits for a record that never arrives."""
    client = RawClient(server.port)
    path = f"/v0/topics/{server.topic_of(shard, 'quiet')}"
    head = client.ask("POST", path, RECORD).json["head_seq"]
    client.send(request_bytes("POST", f"{path}/diff", b'{"from_seq":%d,"wait_ms":30000}' % head))
    return client


def test_a_new_server_waits_for_the_draining_workers_of_the_last_one(tmp_path: Path) -> None:
    """One stopped worker keeps the lock of its shard, and only that shard waits."""
    book = book_of(SHARDS)
    other_folder = tmp_path / "second"
    other_folder.mkdir()
    first = WholeServer(tmp_path, shards=SHARDS)
    with first:
        book.make_topics(first.port)
        with Writers(first.port, book, seed_of_this_run()):
            time.sleep(0.2)
            worker = first.a_worker(0)
            worker.signal(signal.SIGSTOP)
            first.supervisor.signal(signal.SIGKILL)
            first.process.wait()
            released = threading.Timer(2.0, worker.signal, (signal.SIGCONT,))
            released.start()
            second = WholeServer(other_folder, shards=SHARDS, data_dir=tmp_path / "data")
            started = time.monotonic()
            with second:
                took = time.monotonic() - started
                assert worker.wait(0)
                released.join()
        book.crashed()
        worker.close()
    print(f"the second server was ready after {took:.2f} s")
    with first:
        book.check(first.port)
        assert first.stop() == 0


def test_a_second_server_on_the_directory_is_refused_and_the_first_continues(tmp_path: Path) -> None:
    book = book_of(SHARDS)
    other_folder = tmp_path / "second"
    other_folder.mkdir()
    with WholeServer(tmp_path, shards=SHARDS) as server:
        book.make_topics(server.port)
        workers = server.worker_pids()
        with Writers(server.port, book, seed_of_this_run()) as clients:
            for _ in range(2):
                second = WholeServer(other_folder, shards=SHARDS, data_dir=tmp_path / "data")
                with pytest.raises(AssertionError) as refused:
                    second.start()
                assert "in use by another server, process" in str(refused.value)
                assert str(server.pid) in str(refused.value)
            time.sleep(0.2)
        assert server.worker_pids() == workers
        assert clients.ended_count == 0
        assert not book.answers
        book.check(server.port)
        assert server.stop() == 0


def test_an_incomplete_request_is_refused_when_the_server_stops(tmp_path: Path) -> None:
    with WholeServer(tmp_path, shards=SHARDS) as server:
        path = f"/v0/topics/{server.topic_of(0, 'd')}"
        with RawClient(server.port) as fresh, RawClient(server.port) as used:
            assert used.ask("POST", path, RECORD).status == 201
            for client in (fresh, used):
                client.send(request_bytes("POST", path, RECORD)[:-1])
            time.sleep(0.3)
            assert server.stop() == 0
            for client in (fresh, used):
                answer = client.read_answer()
                assert (answer.status, answer.code, answer.closes) == (503, "shutting_down", True)
                client.read_end()


def test_a_stop_under_load_answers_or_refuses_everything(tmp_path: Path) -> None:
    seed = seed_of_this_run()
    book = book_of(SHARDS)
    server = WholeServer(tmp_path, f"--drain-seconds={DRAIN_SECONDS}", shards=SHARDS)
    for number in range(ROUNDS):
        with attempt("stopped under load", f"TOPICS_TEST_SEED={seed}, round {number}"):
            with nothing_left_behind(tmp_path), server:
                if number == 0:
                    book.make_topics(server.port)
                else:
                    book.check(server.port)
                answers, enough = Counter[str](), threading.Event()
                newcomer = threading.Thread(target=_ask_on_new_connections, args=(server, answers, enough))
                with Writers(server.port, book, f"{seed} {number}"):
                    newcomer.start()
                    server.wait_for(lambda: answers["200"] + answers["201"] > 10, "answers")  # noqa: B023
                    started = time.monotonic()
                    assert server.stop() == 0
                    took = time.monotonic() - started
                    enough.set()
                    newcomer.join()
            book.crashed()
            print(f"stopped in {took:.2f} s; new connections: {dict(answers)}; others: {dict(book.answers)}")
            assert took < DRAIN_SECONDS
            # One connection per request: each is answered or refused by the kernel.
            assert set(answers) <= {"200", "201", "503 shutting_down", "refused"}, answers
    with server:
        book.check(server.port)
        assert server.stop() == 0


def _ask_on_new_connections(server: WholeServer, answers: Counter[str], enough: threading.Event) -> None:
    port, shard = server.port, 0
    names = [server.topic_of(shard, "new") for shard in range(server.shards)]
    while not enough.is_set():
        shard += 1
        try:
            with RawClient(port) as client:
                try:
                    answer = client.ask("POST", f"/v0/topics/{names[shard % len(names)]}", RECORD)
                    answers[
                        str(answer.status) if answer.status < 300 else f"{answer.status} {answer.code}"
                    ] += 1
                except ConnectionError as error:
                    answers[f"no answer: {error}"] += 1
        except ConnectionRefusedError:
            answers["refused"] += 1
            enough.wait(0.05)
