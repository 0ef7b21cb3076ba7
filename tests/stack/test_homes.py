"""Homes over a real etcd: nodes send their commits to each other while some of them are killed and stopped.

Every record that was acknowledged is there once at its seq, in the order of the acknowledgements.
"""

from __future__ import annotations

import http.client
import json
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.server.processes import Process, descendants, processes_of
from tests.harness.server.whole_server import WholeServer
from tests.stack.servers import KeyValueServer
from tests.stack.test_shared_catalogs import remove_all
from tests.stack.test_shared_topics_faults import FAULTS, Nodes, nodes

pytestmark = pytest.mark.slow

NODES = 3


@pytest.fixture
def environ(tmp_path: Path, etcd: KeyValueServer) -> Iterator[dict[str, str]]:
    (tmp_path / "objects").mkdir()
    yield {"TOPICS_STORE_URL": f"file://{tmp_path}/objects", "TOPICS_CATALOG_URL": etcd.url}
    remove_all(etcd.url)


def total(servers: list[WholeServer], name: str) -> int:
    """Return the sum of a number of the homes over the brokers of these nodes."""
    answers = [server.ask("GET", "/metrics") for server in servers]
    return sum(json.loads(one.body)["homes"][name] for one in answers if one.status == 200)


def wait_for_homes(some: Nodes) -> None:
    """Wait until homes take commits again."""
    before = total(some.servers, "taken")
    some.servers[0].wait_for(lambda: total(some.servers, "taken") > before, "commits at homes")


def test_nodes_commit_at_homes_while_brokers_are_killed_and_nodes_are_stopped(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    with nodes(tmp_path, *[environ] * NODES) as some:
        with some.load():
            wait_for_homes(some)
            for number in range(FAULTS):
                with closing(some.broker(number % NODES)) as broker:
                    broker.signal(signal.SIGKILL)
                    assert broker.wait()
                some.wait_for_acks()
            some.servers[0].wait_for(lambda: all(one.broker_pids() for one in some.servers), "all brokers")
            wait_for_homes(some)
            stopped = some.servers[0]
            before = total(some.servers[1:], "passed_over")
            processes = [Process(stopped.pid), *processes_of(descendants(stopped.pid))]
            for one in processes:
                one.signal(signal.SIGSTOP)
            some.wait_for_acks()
            # Longer than a request to a home has, and than the heartbeats of a node last.
            time.sleep(12)
            assert total(some.servers[1:], "passed_over") > before
            for one in processes:
                one.signal(signal.SIGCONT)
                one.close()
            wait_for_homes(some)
        some.check()


def test_a_request_that_no_node_has_signed_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    with WholeServer(tmp_path, shards=0, environ=environ) as server:
        for body in (b"", b"{}", b"x" * 32 + b"{}", b"x" * 600_000):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
            with closing(connection):
                connection.request("POST", "/v0/cluster/commit", body)
                answer = connection.getresponse()
                assert (answer.status, b'"forbidden"' in answer.read()) == (403, True)
