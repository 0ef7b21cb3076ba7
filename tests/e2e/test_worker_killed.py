"""One worker is killed or stopped under load: its shard is briefly unavailable, the others are not."""

from __future__ import annotations

import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loadtest.clients.generator import Load, LoadResult, run
from tests.harness.books.process_ledger import ProcessLedger, Sent, book_of, seed_of_this_run
from tests.harness.clients.raw_client import ConnectionEnded, RawClient
from tests.harness.clients.writer_clients import Writers
from tests.harness.server.whole_server import Process, WholeServer
from tests.harness.sweeps.attempts import attempt
from tests.harness.sweeps.crash_sweep import DEEP

ROUNDS = 40 if DEEP else 4
SHARDS = 3
VICTIM = 1
MEASURED_SECONDS = 10.0 if DEEP else 3.0
# A busy machine adds latency of its own; the figures are printed.
TAIL_TIMES = 2.0
TAIL_US_MIN = 50_000 if DEEP else 1_000_000
RECORD = b'{"records":[{"data":1}]}'

pytestmark = pytest.mark.slow


def test_workers_killed_repeatedly_lose_nothing(tmp_path: Path) -> None:
    seed = seed_of_this_run()
    book = book_of(SHARDS)
    retries: list[Sent] = []
    with WholeServer(tmp_path, "--wal-file-bytes=256KiB", shards=SHARDS) as server:
        book.make_topics(server.port)
        for number in range(ROUNDS):
            shard = number % SHARDS
            with attempt("worker killed under load", f"TOPICS_TEST_SEED={seed}, round {number}"):
                with Writers(server.port, book, f"{seed} {number}", retries=retries):
                    time.sleep(0.3)
                    _kill_worker(server, shard)
                    server.wait_for_shard(shard)
                    time.sleep(0.3)
                doubtful = book.crashed()
                book.check(server.port)
                retries = book.settled(doubtful)
        assert server.stop() == 0
    print(f"{book.acked_count} acked, {book.deduped_count} of them again, {dict(book.answers)}")
    assert book.acked_count > ROUNDS * 20


def test_a_killed_worker_does_not_affect_the_other_shards(tmp_path: Path) -> None:
    seed = seed_of_this_run()
    book = book_of(SHARDS)
    with WholeServer(tmp_path, shards=SHARDS) as server, ThreadPoolExecutor() as pool:
        book.make_topics(server.port)
        others = [server.topic_of(shard, "load") for shard in range(SHARDS) if shard != VICTIM]
        targets = tmp_path / "targets"
        targets.write_text("".join(f'/v0/topics/{name}\t{{"records":[{{"data":1}}]}}\n' for name in others))

        def load(seconds: float, rate: float = 0.0) -> LoadResult:
            plan = Load(
                targets=str(targets),
                own_targets=True,
                connections=4,
                seconds=seconds,
                rate=rate,
            )
            return run(server.port, plan)

        rate = load(1.0).per_second / 4
        with Writers(server.port, book, seed, writers=2, topics=_topics_of(server, book), pause_seconds=0.05):
            calm = load(MEASURED_SECONDS, rate)
            struck = pool.submit(load, MEASURED_SECONDS, rate)
            time.sleep(0.5)
            _kill_worker(server, VICTIM)
            outage = _outage(server)
            under_kill = struck.result()
        book.crashed()
        book.check(server.port)
    print(
        f"{rate:,.0f}/s; p99 {calm.latency_us.p99:,.0f} µs, with a kill {under_kill.latency_us.p99:,.0f} µs;"
    )
    print(f"its shard was unavailable for {outage:.2f} s; {dict(book.answers)}")
    assert calm.fault() is None
    assert under_kill.fault() is None
    assert under_kill.latency_us.p99 <= max(TAIL_TIMES * calm.latency_us.p99, TAIL_US_MIN)
    # Only clients of the killed shard received errors.
    assert {seen.topic for seen in book.answers} <= set(_topics_of(server, book))


def _topics_of(server: WholeServer, book: ProcessLedger) -> list[str]:
    return [server.topic_of(VICTIM, "d"), server.topic_of(VICTIM, "f")]


def _kill_worker(server: WholeServer, shard: int) -> None:
    victim = server.a_worker(shard)
    victim.signal(signal.SIGKILL)
    assert victim.wait()
    victim.close()


def _outage(server: WholeServer) -> float:
    """Return the seconds until the shard serves again; new connections get 503 and Retry-After."""
    started = time.monotonic()
    path = f"/v0/topics/{server.topic_of(VICTIM, 'd')}"
    outcomes: Counter[str] = Counter()
    while True:
        assert time.monotonic() - started < 30, outcomes
        try:
            with RawClient(server.port) as client:
                answer = client.ask("GET", path)
                if answer.status == 200:
                    break
                assert (answer.status, answer.code) == (503, "not_ready"), answer
                assert int(answer.fields["retry-after"]) >= 1
                outcomes["503"] += 1
                _check_control(client.socket.getpeername()[1])
        except (ConnectionEnded, ConnectionResetError, BrokenPipeError):
            # The worker died after it received the connection.
            outcomes["ended"] += 1
        time.sleep(0.01)
    assert outcomes["503"] > 0
    assert outcomes["ended"] <= 1, outcomes
    return time.monotonic() - started


def _check_control(port: int) -> None:
    """Check that lists name the shard that is missing from them."""
    with RawClient(port) as client:
        assert client.ask("GET", "/v0/health").status == 200
        ready = client.ask("GET", "/v0/ready?allow_degraded=true")
        assert ready.status == 200
        part = client.ask("GET", "/v0/topics?partial=true")
        listed = client.ask("GET", "/v0/topics")
        if ready.json["status"] == "ready":
            return
        # The shard may have returned between the two requests.
        assert ready.json["status"] == "degraded"
        assert f"shard {VICTIM}" in ready.json["reason"]
        assert part.status == 200
        assert part.json.get("missing_shards", [VICTIM]) == [VICTIM]
        assert listed.status == 200 or (listed.code == "not_ready" and str(VICTIM) in listed.message), listed


def test_a_hanging_worker_is_replaced_and_its_shard_answers_503_meanwhile(tmp_path: Path) -> None:
    seed = seed_of_this_run()
    book = book_of(SHARDS)
    with WholeServer(tmp_path, shards=SHARDS) as server, ThreadPoolExecutor() as pool:
        book.make_topics(server.port)
        path = f"/v0/topics/{server.topic_of(VICTIM, 'd')}"
        with Writers(server.port, book, seed, pause_seconds=0.01):
            time.sleep(0.3)
            hung = server.a_worker(VICTIM)
            hung.signal(signal.SIGSTOP)
            started = time.monotonic()
            with RawClient(server.port) as client:
                answer = client.ask("GET", path)
            first_answer = time.monotonic() - started
            assert (answer.status, answer.code) == (503, "not_ready"), answer
            assert "retry-after" in answer.fields
            foreign = pool.submit(_ask_over_the_link, server)
            others = _ask_others(server, hung)
            killed_after = time.monotonic() - started
            foreign_answer = foreign.result()
            server.wait_for_shard(VICTIM)
        hung.close()
        doubtful = book.crashed()
        book.check(server.port)
        with Writers(server.port, book, f"{seed} again", retries=book.settled(doubtful)):
            time.sleep(0.3)
        book.check(server.port)
        assert server.stop() == 0
    print(f"503 after {first_answer:.2f} s, over the link after {foreign_answer:.2f} s;")
    print(f"killed after {killed_after:.2f} s, {others} answers of others meanwhile")
    assert first_answer < 3
    assert 4 < killed_after < 10


def _ask_over_the_link(server: WholeServer) -> float:
    """Return the seconds until a remote request to the hanging shard is answered."""
    with RawClient(server.port) as client:
        assert client.ask("GET", f"/v0/topics/{server.topic_of(0, 'd')}").status == 200
        began = time.monotonic()
        answer = client.ask("GET", f"/v0/topics/{server.topic_of(VICTIM, 'd')}")
    # Reads are retried, so the next worker may have answered.
    assert answer.status == 200 or (answer.status, answer.code) == (503, "not_ready"), answer
    return time.monotonic() - began


def _ask_others(server: WholeServer, hung: Process) -> int:
    """Ask the other shards on new connections until the hung worker is killed; each of them answers."""
    count = 0
    while not hung.wait(0.02):
        count += 1
        assert count < 1000, "the worker was not killed"
        shard = 0 if count % 2 else 2
        with RawClient(server.port) as client:
            answer = client.ask("POST", f"/v0/topics/{server.topic_of(shard, 'o')}", RECORD)
        assert answer.status in (200, 201), answer
    return count
