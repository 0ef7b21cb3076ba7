"""The whole server is killed under load repeatedly: every acked record survives."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest

from tests.harness.books.process_ledger import Sent, book_of, seed_of_this_run
from tests.harness.clients.writer_clients import Writers
from tests.harness.server.whole_server import WholeServer, nothing_left_behind
from tests.harness.sweeps.attempts import attempt
from tests.harness.sweeps.crash_sweep import DEEP

ROUNDS = 150 if DEEP else 6
# WAL files small enough to rotate in most rounds.
FLAGS = ("--wal-file-bytes=256KiB", "--fronts=2")

pytestmark = pytest.mark.slow


def test_a_server_killed_repeatedly_loses_and_leaks_nothing(tmp_path: Path) -> None:
    seed = seed_of_this_run()
    rng = Random(seed)
    server = WholeServer(tmp_path, *FLAGS, shards=3)
    book = book_of(server.shards)
    retries: list[Sent] = []
    for number in range(ROUNDS):
        with attempt("server killed under load", f"TOPICS_TEST_SEED={seed}, round {number}"):
            if number % 2:
                # The next server is killed as well, at any point of its recovery.
                server.start_and_kill(rng.uniform(0.1, 1.0))
            with nothing_left_behind(tmp_path), server:
                if number == 0:
                    book.make_topics(server.port)
                # Sometimes the next server continues without a check in between.
                elif number % 3:
                    book.check(server.port)
                    retries = book.settled(retries)
                with Writers(server.port, book, f"{seed} {number}", retries=retries):
                    time.sleep(rng.uniform(0.1, 0.7))
                    server.kill(rng)
            retries = book.crashed()
    with server:
        book.check(server.port)
        assert server.stop() == 0
    with server:
        book.check(server.port)
    print(f"{book.acked_count} acked, {book.deduped_count} of them again, {dict(book.answers)}")
    assert book.acked_count > ROUNDS * 20
    assert book.deduped_count > 0
