"""Workers fall silent and the server is killed repeatedly: each job is done or dead-lettered once."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.harness.books.process_ledger import seed_of_this_run
from tests.harness.clients.queue_clients import LEASE_MS, JobBook, QueueClients
from tests.harness.server.whole_server import WholeServer
from tests.harness.sweeps.attempts import attempt
from tests.harness.sweeps.crash_sweep import DEEP

ROUNDS = 60 if DEEP else 5
DELIVERIES_MAX = 3

pytestmark = pytest.mark.slow


def ask(server: WholeServer, method: str, path: str, body: object = None) -> Any:
    return server.ask_json(method, f"/v0/topics/{path}", body)


def test_each_job_is_done_once_or_a_dead_letter_once(tmp_path: Path) -> None:
    seed = seed_of_this_run()
    rng = Random(seed)
    server = WholeServer(tmp_path, "--wal-file-bytes=256KiB")
    queue, dead = server.topic_of(0, "jobs"), server.topic_of(1, "dead")
    book = JobBook(queue, DELIVERIES_MAX)
    for number in range(ROUNDS):
        with attempt("server of a queue killed", f"TOPICS_TEST_SEED={seed}, round {number}"), server:
            if number == 0:
                ask(server, "PUT", dead, {})
                config = {"type": "queue", "leases_durable": True, "max_deliveries": DELIVERIES_MAX}
                ask(server, "PUT", queue, {**config, "dead_letter": dead})
            with QueueClients(server.port, book, f"{seed} {number}"):
                time.sleep(rng.uniform(0.5, 1.5))
                if number % 2:
                    shard = rng.randrange(2)
                    killed = server.a_worker(shard)
                    killed.signal(9)
                    killed.close()
                    server.wait_for_shard(shard)
                    time.sleep(0.5)
                server.kill(rng)
            assert not book.complaints, book.complaints[:3]
    with server:
        _finish(server, book, queue)
        letters = _all_of(server, dead)
        assert server.stop() == 0
    print(dict(book.counted), f"{len(letters)} dead letters")
    dead_numbers = [letter["data"] for letter in letters]
    assert len(dead_numbers) == len(set(dead_numbers)), "a dead letter appears twice"
    assert not set(dead_numbers) & book.done
    assert all(letter["meta"]["$dead_letter_deliveries"] == DELIVERIES_MAX for letter in letters)
    missed = book.produced - book.done - book.may_be_done - set(dead_numbers)
    assert not missed, f"{sorted(missed)} are lost"
    assert book.counted["done"] > ROUNDS * 20
    assert book.counted["streamed"] > ROUNDS
    assert letters


def _finish(server: WholeServer, book: JobBook, queue: str) -> None:
    """Claim and ack the remaining jobs until the queue is empty."""
    time.sleep(LEASE_MS / 1000)
    while ask(server, "GET", queue)["count"]:
        jobs = ask(server, "POST", f"{queue}/claim", {"node": "last", "max": 1000})["claimed"]
        book.claimed(jobs, time.time() * 1000)
        numbers = {job["$seq"]: job["data"] for job in jobs}
        answer = ask(server, "POST", f"{queue}/ack", {"node": "last", "seqs": list(numbers)})
        book.ended(numbers, "ack", answer["skipped"])
        time.sleep(0.05)
    assert not book.complaints, book.complaints[:3]


def _all_of(server: WholeServer, topic: str) -> list[Any]:
    letters: list[Any] = []
    page: dict[str, Any] = {"next_from_seq": 0, "caught_up": False}
    while not page["caught_up"]:
        page = ask(server, "POST", f"{topic}/diff", {"from_seq": page["next_from_seq"], "limit": 1000})
        letters += page["records"]
    return letters
