"""Shared topics while brokers are killed or stopped, and while store or catalog are away, under load.

Two nodes without shards share a store and a catalog. Every record that was acknowledged is there once at its
seq, in the order of the acknowledgements, read at either node; and writes are taken again after each fault.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.harness.books.nodes_book import NodesBook
from tests.harness.books.process_ledger import seed_of_this_run
from tests.harness.clients.node_clients import KEYED, NodeClients, contents_of
from tests.harness.server.processes import Process, descendants, processes_of
from tests.harness.server.whole_server import WholeServer
from tests.harness.sweeps.crash_sweep import DEEP
from tests.stack.cut_proxy import Cut, CutProxy, cut_proxy
from tests.stack.failing_proxy import failing_proxy
from tests.stack.servers import CREDENTIALS, REGION, PostgresServer, s3_server
from topicsd.broker.broker import ReadLimits

pytestmark = pytest.mark.slow

AWAY_SECONDS: Final = 60.0 if DEEP else 4.0
FAULTS: Final = 20 if DEEP else 3
RECOVERY_SECONDS: Final = 60.0
POLL_SECONDS: Final = ReadLimits().poll_seconds
RESIDENT_BYTES_MAX: Final = 700 << 20
ENVIRON: Final = {"TOPICS_BATCH_MAX_DELAY_MS": "20", "TOPICS_BROKERS": "1"}


class Nodes:
    """Two stateless nodes under load."""

    def __init__(self, servers: list[WholeServer]) -> None:
        self.servers = servers
        self.book = NodesBook()
        self.rng = Random(seed_of_this_run())

    @property
    def ports(self) -> list[int]:
        return [server.port for server in self.servers]

    @contextmanager
    def load(self) -> Iterator[None]:
        for name in KEYED:
            made = self.servers[0].ask("PUT", f"/v0/topics/{name}", {"placement": "shared"})
            assert made.status == 201, made
        with NodeClients(lambda: self.ports, self.book, self.rng.random()):
            self.wait_for_acks()
            yield
            self.wait_for_acks()

    def wait_for_acks(self, count: int = 50) -> None:
        """Wait until records are acknowledged again."""
        before = self.book.acked_count
        self.servers[0].wait_for(
            lambda: self.book.acked_count >= before + count or bool(self.book.complaints),
            f"acks after {dict(self.book.refusals)}",
            RECOVERY_SECONDS,
        )

    def broker(self, number: int) -> Process:
        """Return the broker process of a node."""
        server = self.servers[number]
        server.wait_for(lambda: bool(server.broker_pids()), "the node has a broker")
        return server.a_broker()

    def check(self) -> None:
        """Compare all topics at each node with the book.

        What a node knows of commits at another one is outdated by at most the time of a poll.
        """
        time.sleep(2 * POLL_SECONDS)
        for server in self.servers:
            self.book.judge(contents_of(server.port, self.book.topics))
        assert self.book.acked_count > 0


@contextmanager
def nodes(folder: Path, *environs: dict[str, str]) -> Iterator[Nodes]:
    with ExitStack() as stack:
        servers = []
        for number, environ in enumerate(environs):
            (folder / f"node{number}").mkdir()
            server = WholeServer(folder / f"node{number}", shards=0, environ={**ENVIRON, **environ})
            servers.append(stack.enter_context(server))
        made = Nodes(servers)
        yield made
        for server in servers:
            assert server.stop() == 0


def local(folder: Path) -> dict[str, str]:
    (folder / "objects").mkdir()
    return {
        "TOPICS_STORE_URL": f"file://{folder}/objects",
        "TOPICS_CATALOG_URL": f"sqlite://{folder}/catalog.sqlite",
    }


def test_brokers_are_killed_under_load(tmp_path: Path) -> None:
    environ = local(tmp_path)
    with nodes(tmp_path, environ, environ) as both:
        with both.load():
            for number in range(2 * FAULTS):
                time.sleep(both.rng.uniform(0.05, 0.6))
                with closing(both.broker(number % 2)) as broker:
                    broker.signal(signal.SIGKILL)
                    assert broker.wait()
                both.wait_for_acks()
        both.check()


def test_a_node_is_stopped_for_longer_than_its_heartbeats_last(tmp_path: Path) -> None:
    environ = local(tmp_path)
    with nodes(tmp_path, environ, environ) as both:
        with both.load():
            server = both.servers[0]
            processes = [Process(server.pid), *processes_of(descendants(server.pid))]
            for one in processes:
                one.signal(signal.SIGSTOP)
            both.wait_for_acks()
            time.sleep(12 if not DEEP else 180)
            for one in processes:
                one.signal(signal.SIGCONT)
                one.close()
            both.wait_for_acks()
        both.check()


@pytest.mark.parametrize("cut", ["refused", "out", "back"])
@pytest.mark.parametrize("what", ["store", "catalog"])
def test_a_node_is_cut_off(tmp_path: Path, postgresql: PostgresServer, what: str, cut: Cut) -> None:
    (tmp_path / "s3").mkdir()
    database = postgresql.new_database(f"cut_{what}_{cut}")
    with s3_server(tmp_path / "s3") as s3, cut_proxy(s3.port) as store, cut_proxy(postgresql.port) as catalog:
        s3.url("shared")
        by_proxy = {
            **CREDENTIALS,
            "TOPICS_STORE_URL": f"s3://shared?endpoint=http://127.0.0.1:{store.port}&region={REGION}",
            "TOPICS_CATALOG_URL": database.replace(f":{postgresql.port}/", f":{catalog.port}/"),
        }
        direct = {
            **CREDENTIALS,
            "TOPICS_STORE_URL": f"s3://shared?endpoint=http://127.0.0.1:{s3.port}&region={REGION}",
            "TOPICS_CATALOG_URL": database,
        }
        with nodes(tmp_path, by_proxy, direct) as both:
            with both.load():
                proxy: CutProxy = store if what == "store" else catalog
                proxy.cut = cut
                both.wait_for_acks()
                time.sleep(AWAY_SECONDS)
                proxy.cut = "none"
                _wait_until_written_at(both, 0)
            both.check()


def test_the_catalog_is_killed_and_started_again(tmp_path: Path, postgresql: PostgresServer) -> None:
    (tmp_path / "objects").mkdir()
    environ = {
        "TOPICS_STORE_URL": f"file://{tmp_path}/objects",
        "TOPICS_CATALOG_URL": postgresql.new_database("killed_catalog"),
    }
    with nodes(tmp_path, environ, environ) as both:
        with both.load():
            for _ in range(FAULTS):
                postgresql.stop()
                time.sleep(both.rng.uniform(0.1, 2))
                postgresql.start()
                both.wait_for_acks()
        both.check()


def test_the_store_answers_503(tmp_path: Path) -> None:
    (tmp_path / "s3").mkdir()
    with s3_server(tmp_path / "s3") as s3, failing_proxy(s3.port) as proxy:
        s3.url("shared")
        environ = {
            **CREDENTIALS,
            "TOPICS_STORE_URL": f"s3://shared?endpoint=http://127.0.0.1:{proxy.port}&region={REGION}",
            "TOPICS_CATALOG_URL": f"sqlite://{tmp_path}/catalog.sqlite",
        }
        with nodes(tmp_path, environ, environ) as both:
            with both.load():
                proxy.share = 1.0
                time.sleep(AWAY_SECONDS)
                for number in range(2):
                    with closing(both.broker(number)) as broker:
                        assert broker.peak_bytes() < RESIDENT_BYTES_MAX
                proxy.share = 0.3
                both.wait_for_acks()
                proxy.share = 0.0
            both.check()


def test_a_record_of_one_node_is_read_at_the_other_within_a_second(tmp_path: Path) -> None:
    environ = local(tmp_path)
    with nodes(tmp_path, environ, environ) as both:
        one, other = both.servers
        assert one.ask("PUT", "/v0/topics/news", {"placement": "shared"}).status == 201
        for number in range(5):
            waiting = {"from_seq": number, "wait_ms": 20_000}
            with other.connect() as reader:
                begun = reader.start("POST", "/v0/topics/news/diff", waiting)
                time.sleep(0.7)
                one.ask_json("POST", "/v0/topics/news", {"records": [{"data": number}]})
                acked = time.monotonic()
                page = reader.finish(begun).succeeded
            assert [record["data"] for record in page["records"]] == [number]
            assert time.monotonic() - acked < 1.0


def _wait_until_written_at(both: Nodes, number: int) -> None:
    """Wait until a node that was cut off takes writes."""
    server = both.servers[number]

    def is_taken() -> bool:
        body = {"topic_partitions": [{"topic": "back", "partition": 0, "records": ["again"]}]}
        try:
            return server.ask("POST", "/produce", body).status == 200
        except OSError:
            return False

    server.wait_for(is_taken, "the node takes writes again", RECOVERY_SECONDS)
