"""Backups under load, with a worker killed in between: each restores to the prefix that its clients know."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.e2e.test_backup import SMALL, restore
from tests.harness.books.backup_moment import Backup, Known, known_now
from tests.harness.books.process_ledger import ProcessLedger, book_of, seed_of_this_run
from tests.harness.clients.queue_clients import LEASE_MS, JobBook, QueueClients
from tests.harness.clients.raw_client import RawClient
from tests.harness.clients.topic_client import TopicClient
from tests.harness.clients.writer_clients import Writers
from tests.harness.output.command_run import command_line, environment, run_here
from tests.harness.server.whole_server import WholeServer, name_on

pytestmark = pytest.mark.slow

SHARDS: Final = 2
DELIVERIES_MAX: Final = 1000
REPEATED: Final = 150
QUEUE: Final = name_on(1, SHARDS, "jobs")
CURSOR_TOPIC: Final = name_on(0, SHARDS, "cursors")


class CursorMover:
    """A reader that keeps its place in a named cursor, which only advances."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.sent = self.acked = 0

    def move(self, ends: threading.Event) -> None:
        while not ends.wait(0.005):
            try:
                with RawClient(self._port) as client:
                    self._advance(client, ends)
            except ConnectionError:
                ends.wait(0.02)

    def _advance(self, client: RawClient, ends: threading.Event) -> None:
        while not ends.wait(0.005):
            self.sent = self.acked + 1
            record = {"records": [{"data": self.sent}], "idempotency_key": f"record {self.sent}"}
            if client.ask("POST", f"/v0/topics/{CURSOR_TOPIC}", record).status not in (200, 201):
                return
            path = f"/v0/topics/{CURSOR_TOPIC}/cursors/reader"
            if client.ask("PUT", path, {"from_seq": self.sent}).status not in (200, 201):
                return
            self.acked = self.sent


class Load:
    """The clients of one server, and what they know."""

    def __init__(self, server: WholeServer, seed: int) -> None:
        self.book: ProcessLedger = book_of(SHARDS)
        self.jobs = JobBook(QUEUE, DELIVERIES_MAX)
        self.cursor = CursorMover(server.port)
        self._server = server
        self._seed = seed

    @contextmanager
    def running(self) -> Iterator[None]:
        ends = threading.Event()
        mover = threading.Thread(target=self.cursor.move, args=(ends,))
        mover.start()
        try:
            with (
                Writers(self._server.port, self.book, self._seed, size=200),
                QueueClients(self._server.port, self.jobs, self._seed, workers=4, streams=1),
            ):
                yield
        finally:
            ends.set()
            mover.join()

    def known(self) -> Known:
        # Read in an order in which `acked` is not later, and `sent` not earlier, than the rest.
        acked = self.cursor.acked
        return known_now(self.book, self.jobs, acked, self.cursor.sent)


def take_backup(load: Load, data: Path, store: Path, *flags: str) -> Backup:
    before = load.known()
    made = run_here("backup", "create", data, "--to", store, "--json", *flags)
    assert made.code == 0, made.err
    return Backup(made.json["id"], before, load.known())


def backup_beside_a_kill(load: Load, server: WholeServer, store: Path, rng: Random) -> list[Backup]:
    """Kill a worker while a backup is created; return the backup unless it was refused."""
    before = load.known()
    arguments = ("backup", "create", server.folder / "data", "--to", store, "--json")
    with subprocess.Popen(
        command_line(*arguments), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        time.sleep(rng.uniform(0.3, 1.5))
        server.kill_worker(rng.randrange(SHARDS))
        process.wait()
    ids = [one["id"] for one in run_here("backup", "list", store, "--json").json["backups"]]
    assert process.returncode in (0, 1, 2)
    return [Backup(max(ids), before, load.known())] if process.returncode == 0 else []


def test_each_backup_under_load_restores_to_the_prefix_of_the_ledger_at_its_point(tmp_path: Path) -> None:
    seed = seed_of_this_run()
    rng = Random(seed)
    store = tmp_path / "store"
    store.mkdir()
    with WholeServer(tmp_path, *SMALL, shards=SHARDS) as server:
        load = Load(server, seed)
        load.book.make_topics(server.port)
        api = TopicClient(server.port)
        api.put(QUEUE, type="queue", leases_durable=True, max_deliveries=DELIVERIES_MAX)
        api.put(CURSOR_TOPIC)
        with load.running():
            time.sleep(1)
            backups = [take_backup(load, tmp_path / "data", store)]
            time.sleep(0.5)
            backups.append(take_backup(load, tmp_path / "data", store))
            killed = rng.randrange(SHARDS)
            server.kill_worker(killed)
            server.wait_for_shard(killed)
            time.sleep(0.3)
            backups.append(take_backup(load, tmp_path / "data", store))
            backups += backup_beside_a_kill(load, server, store, rng)
            for shard in range(SHARDS):
                server.wait_for_shard(shard)
            backups.append(take_backup(load, tmp_path / "data", store, "--full"))
            time.sleep(0.3)
        assert not load.book.complaints, load.book.complaints[:3]
        assert not load.jobs.complaints, load.jobs.complaints[:3]
        assert load.cursor.acked > 20
        server.kill(rng)
    for number, backup in enumerate(backups):
        target = tmp_path / f"restored{number}"
        restore(store, target / "data", backup_id=backup.backup_id)
        with WholeServer(target, shards=SHARDS) as server:
            # The judge refuses it as the backup of another moment.
            if number in (0, len(backups) - 1):
                other, _ = backups[-1 - number].ledger(load.book)
                with pytest.raises(AssertionError):
                    other.check(load.book.contents(server.port), exact=True)
            check_restored(server, load, backup, rng)
            server.kill()
    print(f"{len(backups)} backups, {load.book.acked_count} acknowledged writes, {dict(load.jobs.counted)}")


def check_restored(server: WholeServer, load: Load, backup: Backup, rng: Random) -> None:
    assert len(backup.before.acked) > 50
    ledger, keyed = backup.ledger(load.book)
    ledger.check(load.book.contents(server.port), exact=True)
    heads = {name: ledger.page(name).last.head_seq for name in load.book.topics}
    cursor = server.ask_json("GET", f"/v0/topics/{CURSOR_TOPIC}/cursors/reader")["from_seq"]
    backup.check_cursor(cursor)
    backup.check_jobs(claim_all(server))
    # After all else, since what was not in the backup is appended.
    with RawClient(server.port) as client:
        for sent in rng.sample(keyed, min(REPEATED, len(keyed))):
            client.send(sent.wire)
            answer = client.read_answer("POST").succeeded
            is_in = sent.request.fate == "acked"
            assert answer["deduped"] == is_in, (sent.request, answer)
            if is_in:
                assert answer["first_seq"] == sent.request.first_seq, (sent.request, answer)
            else:
                assert answer["first_seq"] > heads[sent.request.topic]


def claim_all(server: WholeServer) -> list[int]:
    """Claim and end all jobs of the restored queue; return their numbers."""
    api = TopicClient(server.port)
    numbers: list[int] = []
    time.sleep(LEASE_MS / 1000)
    while api.state(QUEUE)["count"]:
        jobs = api.call(QUEUE, "claim", node="judge", max=1000)["claimed"]
        numbers += [job["data"] for job in jobs]
        if jobs:
            api.call(QUEUE, "ack", node="judge", seqs=[job["$seq"] for job in jobs])
        time.sleep(0.02)
    return numbers
