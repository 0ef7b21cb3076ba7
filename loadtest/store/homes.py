"""Nodes that write to one shared topic, with homes and without.

Call it as `python -m loadtest.store.homes etcd://HOST:PORT`.

Four nodes of one broker each, and at each a client that appends ten records to the same topic, again as soon
as it has the answer. Each node commits once in its linger, so the commits of all meet at the topic. The
requests are those that etcd has counted. With and without homes alternate, in servers of their own.
"""

from __future__ import annotations

import http.client
import os
import re
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from loadtest.clients.processes import Running
from loadtest.clients.traffic import append_body
from loadtest.store.nodes import DATA, JSON, ask

NODES: Final = 4
RECORDS: Final = 10
SECONDS: Final = 15.0
WARM_SECONDS: Final = 6.0
"""Until all nodes see each other."""
ROUNDS: Final = 3
LINGERS_MS: Final = (250, 50)
OK: Final = 200
_HANDLED: Final = re.compile(
    r'^grpc_server_handled_total{grpc_code="OK",grpc_method="(?:Txn|Range)".*} (\S+)$', re.M
)


class Measured(NamedTuple):
    commits_a_second: float
    p50_ms: float
    p99_ms: float
    requests_a_commit: float
    cpu_ms_a_commit: float
    taken: float


@contextmanager
def cluster(home: str, catalog: str, linger_ms: int, has_homes: bool) -> Iterator[list[Running]]:
    os.makedirs(os.path.join(home, "objects"))
    environ = {
        **os.environ,
        "TOPICS_STORE_URL": f"file://{home}/objects",
        "TOPICS_CATALOG_URL": catalog,
        "TOPICS_BATCH_MAX_DELAY_MS": str(linger_ms),
        "TOPICS_HOME_COMMITS": "true" if has_homes else "false",
    }
    with ExitStack() as stack:
        servers = []
        for number in range(NODES):
            folder = os.path.join(home, str(number))
            os.mkdir(folder)
            flags = ("--port=0", f"--port-file={folder}/port", "--shards=0", f"--data-dir={folder}/data")
            command = [sys.executable, "-m", "topicsd", "serve", *flags]
            servers.append(stack.enter_context(Running(command, folder, environ)))
        for server in servers:
            ask(server.port, "GET", "/health")
        yield servers


def write(port: int, name: str, end: float, times: list[float]) -> None:
    """Append to a topic at one node until the time is over; collect the ms of each append."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = append_body(RECORDS, DATA)
    while (started := time.monotonic()) < end:
        connection.request("POST", f"/v0/topics/{name}", body, JSON)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == OK, text
        times.append((time.monotonic() - started) * 1000)
    connection.close()


def load(servers: list[Running], name: str, seconds: float) -> list[float]:
    times: list[float] = []
    end = time.monotonic() + seconds
    threads = [threading.Thread(target=write, args=(one.port, name, end, times)) for one in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(times)


def etcd_requests(catalog: str) -> float:
    with urllib.request.urlopen(f"http://{urlsplit(catalog).netloc}/metrics") as answer:
        return sum(float(count) for count in _HANDLED.findall(answer.read().decode()))


def broker_numbers(server: Running, section: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        sections = msgspec.json.decode(answer.read(), type=dict[str, msgspec.Raw])
    return msgspec.json.decode(sections[section], type=dict[str, float])


def flushes(servers: list[Running]) -> int:
    return sum(int(broker_numbers(one, "batcher")["flushes"]) for one in servers)


def measure(catalog: str, linger_ms: int, has_homes: bool) -> Measured:
    name = f"hot-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory() as home, cluster(home, catalog, linger_ms, has_homes) as servers:
        ask(servers[0].port, "PUT", f"/v0/topics/{name}", b'{"placement":"shared"}')
        load(servers, name, WARM_SECONDS)
        commits, requests = flushes(servers), etcd_requests(catalog)
        cpu = sum(one.cpu_seconds() for one in servers)
        times = load(servers, name, SECONDS)
        cpu = sum(one.cpu_seconds() for one in servers) - cpu
        commits, requests = flushes(servers) - commits, etcd_requests(catalog) - requests
        taken = sum(broker_numbers(one, "homes")["taken"] for one in servers)
        ask(servers[0].port, "DELETE", f"/v0/topics/{name}")
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    return Measured(commits / SECONDS, p50, p99, requests / commits, 1000 * cpu / commits, taken)


def cell(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def main() -> None:
    catalog = sys.argv[1]
    for linger_ms in LINGERS_MS:
        results: dict[bool, list[Measured]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for has_homes, measured in results.items():
                measured.append(measure(catalog, linger_ms, has_homes))
        for has_homes, measured in results.items():
            cells = [cell([one[number] for one in measured]) for number in range(5)]
            through = "a home" if has_homes else "the catalog"
            print(f"| {linger_ms} ms | {through} | {' | '.join(cells)} |", flush=True)
            assert all(bool(one.taken) == has_homes for one in measured)


if __name__ == "__main__":
    main()
