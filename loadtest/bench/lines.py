"""The lines of the benchmark: the processes and the load of each, and its goal."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import msgspec

from loadtest.bench.fanout_lines import delivering, delivery, sessions
from loadtest.bench.filter_line import filtered
from loadtest.bench.queue_lines import fair, jobs, memory_of_a_job, waiting
from loadtest.bench.restart_line import others_of_a_restart
from loadtest.bench.result import Goal, Result
from loadtest.bench.rounds import Bench, against_ceiling, medians
from loadtest.bench.route_lines import append_beside, chain, fan_out, one_route
from loadtest.bench.upload_lines import lines_of_json
from loadtest.ceilings.read_ceiling import COUNT
from loadtest.clients.generator import Load
from loadtest.clients.traffic import (
    NotMeasured,
    append_body,
    ask,
    create_topics,
    diff_targets,
    fill,
    names_by_connection,
    names_of_shard,
    targets,
)

POOL_CONNECTIONS = 32
POOL_TOPICS_EACH = 32
# Of 8 requests of a connection, this many are foreign: 64 in a row would close it to be placed anew.
FOREIGN_OF_EIGHT = 7
CHANGE_EVERY_REQUESTS = 1000


def writes(records: int, connections: int, is_durable: bool) -> Callable[[Bench], Result]:
    def measure(bench: Bench) -> Result:
        flags = ["--durable"] if is_durable else []
        with bench.subjects.server() as server, bench.subjects.ceiling("write_ceiling", *flags) as ceiling:
            config = b'{"durable":%b}' % (b"true" if is_durable else b"false")
            create_topics(server.port, bench.home, ["x"], config)
            body = append_body(records)
            if (count := ask(server.port, "/v0/topics/x", body)["count"]) != records:
                raise NotMeasured(f"{records} records were sent, {count} were written")
            load = bench.load(path="/v0/topics/x", body=body, connections=connections)
            return against_ceiling(bench, server, ceiling, load, records)

    return measure


def diff(limit: int) -> Callable[[Bench], Result]:
    def measure(bench: Bench) -> Result:
        with bench.subjects.server() as server, bench.subjects.ceiling("read_ceiling") as ceiling:
            create_topics(server.port, bench.home, ["x"])
            fill(server.port, "x")
            answer = ask(server.port, "/v0/topics/x/diff", b'{"from_seq":20000,"limit":%d}' % limit)
            if (count := len(answer["records"])) != limit:
                raise NotMeasured(f"a diff of {limit} returned {count} records")
            path = diff_targets(os.path.join(bench.home, "diffs"), limit)
            return against_ceiling(bench, server, ceiling, bench.load(targets=path, connections=32))

    return measure


def diff_of_sealed(bench: Bench) -> Result:
    """Measure reads of sealed segments: the first round reads files, the others the cache."""
    settings = {
        "TOPICS_CHECKPOINT_INTERVAL_MS": "200",
        "TOPICS_SEGMENT_MAX_EVENTS": "1000",
    }
    with bench.subjects.server(1, **settings) as server:
        create_topics(server.port, bench.home, ["x"])
        fill(server.port, "x")
        data_dir = os.path.join(server.home, "data")

        def sealed() -> bool | None:
            count = sum(name.endswith(".data") for _, _, names in os.walk(data_dir) for name in names)
            return count >= COUNT // 1000 or None

        server.wait_for(sealed, "segments")
        path = diff_targets(os.path.join(bench.home, "diffs"), 100, first=0)
        (rounds,) = bench.in_turn((server, bench.load(targets=path, connections=32)))
        value = statistics.median(reading.per_second for reading in rounds)
        p50_us = statistics.median(reading.p50_us for reading in rounds)
        p99_us = statistics.median(reading.p99_us for reading in rounds)
        return Result(line="", title="", unit="requests/s", value=value, p50_us=p50_us, p99_us=p99_us)


def pool_targets(bench: Bench, shards: int) -> tuple[list[str], str]:
    """Return about 1,000 topics, and a file with one write to each."""
    names = names_by_connection(POOL_CONNECTIONS, POOL_TOPICS_EACH, shards)
    body = append_body(1)
    path = targets(os.path.join(bench.home, "pool"), [(f"/v0/topics/{name}", body) for name in names])
    return names, path


def two_shards(bench: Bench) -> Result:
    names, path = pool_targets(bench, 2)
    load = bench.load(targets=path, own_targets=True, connections=POOL_CONNECTIONS)
    with bench.subjects.server(2) as two, bench.subjects.server(1) as one:
        for server in (two, one):
            create_topics(server.port, bench.home, names)
        rounds = bench.in_turn((two, load), (one, load))
    value, single, ratio = medians(rounds, lambda reading: 1e6 / max(reading.cpu_us, 1e-3))
    rate, single_rate, _ = medians(rounds, lambda reading: reading.per_second)
    note = f"{rate:,.0f} requests/s with two shards, {single_rate:,.0f} with one"
    return Result(
        line="", title="", unit="records/CPU s", value=value, ceiling=single, ratio=ratio, note=note
    )


def remote(bench: Bench) -> Result:
    """Derive the cost of a foreign request from a mix.

    A connection that sends only foreign requests would be closed and placed at the other worker.
    """
    connections, eighth = 16, 8 - FOREIGN_OF_EIGHT
    own, foreign = (next(names_of_shard(shard, 2)) for shard in (0, 1))
    body = append_body(1)
    rows = [own] * eighth + [foreign] * FOREIGN_OF_EIGHT
    pairs = [(f"/v0/topics/{name}", body) for name in rows for _ in range(connections)]
    mixed = targets(os.path.join(bench.home, "mixed"), pairs)
    plain = bench.load(path=f"/v0/topics/{own}", body=body, connections=connections)
    load = bench.load(targets=mixed, own_targets=True, connections=connections)
    with (
        bench.subjects.server(2) as server,
        bench.subjects.ceiling("link_ceiling") as link,
        bench.subjects.ceiling("link_ceiling", "--direct") as direct,
    ):
        create_topics(server.port, bench.home, [own, foreign])
        rounds = bench.in_turn((server, load), (server, plain), (link, plain), (direct, plain))
    ratio = medians(rounds[:2], lambda reading: reading.cpu_us)[2]
    value = (8 * ratio - eighth) / FOREIGN_OF_EIGHT
    bare = medians(rounds[2:], lambda reading: reading.cpu_us)[2]
    return Result(line="", title="", unit="x the CPU", value=value, ceiling=bare)


def pool(bench: Bench) -> Result:
    names, path = pool_targets(bench, 5)
    goes_round = bench.load(targets=path, connections=POOL_CONNECTIONS)
    keeps_to = bench.load(targets=path, own_targets=True, connections=POOL_CONNECTIONS)
    with bench.subjects.server(5) as server:
        create_topics(server.port, bench.home, names)
        rounds = bench.in_turn((server, goes_round), (server, keeps_to))
    value, kept, ratio = medians(rounds, lambda reading: reading.per_second)
    cpu_ratio = 1 / max(medians(rounds, lambda reading: reading.cpu_us)[2], 1e-9)
    p99 = statistics.median(reading.p99_us for reading in rounds[0])
    return Result(
        line="",
        title="",
        unit="requests/s",
        value=value,
        ceiling=kept,
        ratio=ratio,
        cpu_ratio=cpu_ratio,
        p99_us=p99,
    )


def changing_connections(bench: Bench) -> Result:
    """Measure connections that change the shard they write to, beside connections that keep to theirs.

    The server closes a connection that has changed, and the load generator connects again.
    """
    names = [next(names_of_shard(shard, 2)) for shard in (0, 1)]
    body = append_body(1)

    def load(name: str, blocks: int) -> Load:
        turns = range(blocks * CHANGE_EVERY_REQUESTS)
        rows = (
            names[(turn // CHANGE_EVERY_REQUESTS + connection) % 2]
            for turn in turns
            for connection in range(POOL_CONNECTIONS)
        )
        path = targets(os.path.join(bench.home, name), [(f"/v0/topics/{row}", body) for row in rows])
        return bench.load(targets=path, own_targets=True, connections=POOL_CONNECTIONS)

    with bench.subjects.server(2) as server:
        create_topics(server.port, bench.home, names)
        rounds = bench.in_turn((server, load("changing", 2)), (server, load("keeping", 1)))
    value, kept, ratio = medians(rounds, lambda reading: reading.per_second)
    cpu_ratio = 1 / max(medians(rounds, lambda reading: reading.cpu_us)[2], 1e-9)
    return Result(
        line="", title="", unit="requests/s", value=value, ceiling=kept, ratio=ratio, cpu_ratio=cpu_ratio
    )


def new_connections(bench: Bench) -> Result:
    with bench.subjects.server() as server, bench.subjects.ceiling("hand_over_ceiling") as ceiling:
        create_topics(server.port, bench.home, ["x"])
        load = bench.load(path="/v0/topics/x", body=append_body(1), connections=32, new_connection_each=True)
        return against_ceiling(bench, server, ceiling, load)


def memory(bench: Bench) -> Result:
    with bench.subjects.server(2) as server:
        # By then, memory used only during the start has been released.
        time.sleep(min(2.0, bench.seconds))
        value = server.pss_bytes() / (1 << 20)
        count = len(server.pids())
    return Result(line="", title="", unit="MiB", value=value, note=f"{count} processes")


class Line(msgspec.Struct, frozen=True):
    title: str
    measure: Callable[[Bench], Result]
    goal: Goal | None


LINES = {
    "writes": Line("single writes, disk, 32 connections", writes(1, 32, False), Goal(0.66)),
    "fsync": Line("single writes, fsync, 32 connections", writes(1, 32, True), Goal(0.66)),
    "batches": Line("batches of 100, disk, 32 connections", writes(100, 32, False), Goal(0.66)),
    "ndjson": Line("lines of JSON over batches of 100", lines_of_json, Goal(0.8)),
    "one": Line("one connection, one write at a time", writes(1, 1, False), Goal(0.6)),
    "diff-1": Line("diff of 1 from the hot tail", diff(1), Goal(0.66)),
    "diff-100": Line("diff of 100 from the hot tail", diff(100), Goal(0.66)),
    "diff-1000": Line("diff of 1,000 from the hot tail", diff(1000), Goal(0.66)),
    "sealed": Line("diff of 100 from sealed segments", diff_of_sealed, Goal(10_000, of_value=True)),
    "filter": Line(
        "a diff of 1 % of the records over them alone", filtered, Goal(2, of_value=True, at_most=True)
    ),
    "shards": Line("two shards over one, 1,024 topics", two_shards, Goal(0.8)),
    "remote": Line("a remote request over a direct", remote, Goal(2, of_value=True, at_most=True)),
    "pool": Line("a pool round 1,024 topics, 5 shards", pool, Goal(0.5)),
    "changing": Line("connections that change their shard", changing_connections, Goal(0.6)),
    "connections": Line("a new connection per request", new_connections, None),
    "restart": Line("beside a worker that is restarted", others_of_a_restart, Goal(2, at_most=True)),
    "fanout-1": Line("an append to its delivery, 1 watcher", delivery(1), Goal(0.6)),
    "fanout-10": Line("an append to its delivery, 10 watchers", delivery(10), Goal(0.6)),
    "fanout-100": Line("an append to its delivery, 100 watchers", delivery(100), Goal(0.66)),
    "fanout-1000": Line("an append to its delivery, 1,000 watchers", delivery(1000), Goal(0.66)),
    "fanout": Line("deliveries to 1,000 watchers", delivering(1000), Goal(0.66)),
    "jobs": Line("produced to acked, claims of 8, 50 workers", jobs, Goal(42_000, of_value=True)),
    "waiting": Line(
        "a job with a million waiting over a thousand", waiting, Goal(1.2, of_value=True, at_most=True)
    ),
    "fair": Line("a job of a fair queue over a plain one", fair, Goal(1.3, of_value=True, at_most=True)),
    "job": Line("memory of a waiting job", memory_of_a_job, None),
    "route": Line("records through one route", one_route(1), None),
    "route-shards": Line("records through one route between shards", one_route(2), None),
    "route-chain": Line("records through a chain of 5 routes", chain, None),
    "route-100": Line("copies of records into 100 destinations", fan_out, None),
    "route-append": Line("an append with 100 routes from its topic", append_beside, Goal(1.1, at_most=True)),
    "sessions": Line("memory of a watch session", sessions, Goal(20, of_value=True, at_most=True)),
    "memory": Line("memory, empty, 2 shards (PSS)", memory, Goal(160, of_value=True, at_most=True)),
}
