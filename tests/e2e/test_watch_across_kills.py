"""Watchers receive every record once and in order while workers are killed under load."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from random import Random

import pytest

from tests.harness.books.process_ledger import seed_of_this_run
from tests.harness.books.watch_book import WatchBook
from tests.harness.clients.watch_clients import WatchClients
from tests.harness.server.whole_server import WholeServer
from tests.harness.sweeps.attempts import attempt
from tests.harness.sweeps.crash_sweep import DEEP

SHARDS = 2
WATCHERS = 20
# Polling clients, and as many WebSockets.
OTHERS = 6
SECONDS = 120.0 if DEEP else 12.0
CAP = 60

pytestmark = pytest.mark.slow


def test_watchers_receive_everything_while_workers_are_killed(tmp_path: Path) -> None:
    seed = seed_of_this_run()
    rng = Random(seed)
    # The cache is too small for slow watchers: they read sealed segments.
    flags = ("--wal-file-bytes=256KiB", "--page-cache-bytes=1MiB", "--checkpoint-interval-ms=500")
    with WholeServer(tmp_path, *flags, shards=SHARDS) as server:
        caps, recreated = {}, []
        for shard in range(SHARDS):
            caps[server.topic_of(shard, "plain")] = 0
            caps[server.topic_of(shard, "capped")] = CAP
            recreated.append(server.topic_of(shard, "recreated"))
            caps[recreated[-1]] = 0
        book = WatchBook(caps)
        clients = WatchClients(server.port, book, seed, recreated, WATCHERS, OTHERS)
        with attempt("workers killed while watched", f"TOPICS_TEST_SEED={seed}"):
            clients.start()
            try:
                _kill_now_and_then(server, book, rng)
            finally:
                clients.finish()
            book.check()
        assert server.stop() == 0
    print(dict(book.counts))
    assert book.counts["records read"] > 2 * book.counts["records written"] > 1000
    assert book.counts["workers killed"] >= 3
    for kind in ("Poller", "SocketWatcher"):
        assert book.counts[f"records read by a {kind}"] > book.counts["records written"] / 4
    received = {name for name, number in book.counts.items() if number}
    assert {"tombstone cap", "tombstone recreated", "topic-deleted", "error not_ready"} <= received


def _kill_now_and_then(server: WholeServer, book: WatchBook, rng: Random) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and not book.complaints:
        time.sleep(rng.uniform(0.3, 2.0))
        shard = rng.randrange(SHARDS)
        victim = server.a_worker(shard)
        victim.signal(signal.SIGKILL)
        assert victim.wait()
        victim.close()
        server.wait_for_shard(shard)
        book.count("workers killed")
