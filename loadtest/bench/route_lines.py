"""Benchmark lines of routes: records per second, and the cost to appends.

Records per second are the records appended as fast as the server accepts them, divided by the time from the
first append to the last copy. That includes the cost of the client and of the appends on the same machine.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from loadtest.bench.result import Result
from loadtest.bench.rounds import Bench, Reading, medians
from loadtest.clients.generator import Load, run
from loadtest.clients.processes import Running
from loadtest.clients.traffic import NotMeasured, append_body, ask, create_topics, names_of_shard

BATCH = 100
CONNECTIONS = 4
CHAIN = 5
DESTINATIONS = 100
# The copies requested per second of benchmark, about as many as can be made in one second.
COPIES = 100_000
# Appends per second at which a shard with all those destinations is idle more than half of the time.
RATE = 100
# At that rate a round must be longer, so that one percent of the appends is more than a few.
RATE_ROUND = 4
TIMEOUT_SECONDS = 120.0
POLL_SECONDS = 0.01


def one_route(shards: int) -> Callable[[Bench], Result]:
    """Measure a route from the first shard into the last, which may be the same shard."""

    def measure(bench: Bench) -> Result:
        source = next(names_of_shard(0, shards))
        dest = next(name for name in names_of_shard(shards - 1, shards) if name != source)
        return _copying(bench, [(source, dest)], [dest], shards)

    return measure


def chain(bench: Bench) -> Result:
    """Measure a chain of routes by the records at its end."""
    names = [f"link-{number}" for number in range(CHAIN + 1)]
    return _copying(bench, list(pairwise(names)), names[-1:])


def fan_out(bench: Bench) -> Result:
    """Measure routes from one topic into many by the number of copies."""
    dests = _dests()
    return _copying(bench, [("source", dest) for dest in dests], dests)


def append_beside(bench: Bench) -> Result:
    """Measure the same appends at a fixed rate on two servers, one of which copies each record."""
    body = append_body(1)
    seconds = bench.seconds * RATE_ROUND
    load = bench.load(
        path="/v0/topics/source", body=body, rate=RATE, connections=CONNECTIONS, seconds=seconds
    )
    dests = _dests()
    with bench.subjects.server() as copying, bench.subjects.server() as plain:
        create_topics(plain.port, bench.home, ["source", *dests])
        _make(bench, copying, [("source", dest) for dest in dests])
        rounds = bench.in_turn((copying, load), (plain, load))
        _wait_for_copies(copying, "source", dests)
    p50_us, plain_p50_us, p50_ratio = medians(rounds, lambda reading: reading.p50_us)
    p99_us, plain_p99_us, p99_ratio = medians(rounds, lambda reading: reading.p99_us)
    busy = statistics.median(reading.cpu_us for reading in rounds[0]) * RATE / 1e6
    if busy > 0.5:
        raise NotMeasured(f"at {RATE} appends a second the shard was busy for {busy:.0%} of the time")
    p99_ms = f"{p99_us / 1000:.2f} ms, {plain_p99_us / 1000:.2f} without"
    return Result(
        line="",
        title="",
        unit="ms (median)",
        value=p50_us / 1000,
        ceiling=plain_p50_us / 1000,
        ratio=max(p50_ratio, p99_ratio),
        p50_us=p50_us,
        p99_us=p99_us,
        ceiling_p99_us=plain_p99_us,
        note=f"{RATE} appends a second of 1 record, the shard {busy:.0%} busy; the ratio is the worse of "
        f"p50 {p50_ratio:.2f} and p99 {p99_ratio:.2f} ({p99_ms})",
    )


def _dests() -> list[str]:
    return [f"dest-{number}" for number in range(DESTINATIONS)]


def _copying(bench: Bench, ends: Sequence[tuple[str, str]], lasts: Sequence[str], shards: int = 1) -> Result:
    with bench.subjects.server(shards) as server:
        _make(bench, server, ends)
        count = max(1, int(COPIES * bench.seconds / BATCH / len(ends)))
        (rounds,) = bench.rounds_of(partial(_read, bench, server, ends[0][0], lasts, count))
    cpu_us = statistics.median(reading.cpu_us for reading in rounds) / len(ends)
    return Result(
        line="",
        title="",
        unit="records/s",
        value=statistics.median(reading.per_second for reading in rounds) * len(lasts),
        p50_us=statistics.median(reading.p50_us for reading in rounds),
        p99_us=statistics.median(reading.p99_us for reading in rounds),
        note=f"{CONNECTIONS} connections append in batches of {BATCH}; {cpu_us:.1f} us of CPU in the server "
        "for each copy with its share of an append; the times are those of an append",
    )


def _make(bench: Bench, server: Running, ends: Sequence[tuple[str, str]]) -> None:
    create_topics(server.port, bench.home, dict.fromkeys(name for pair in ends for name in pair))
    os.unlink(os.path.join(bench.home, "put"))
    for source, dest in ends:
        body = b'{"source":"%b","dest":"%b"}' % (source.encode(), dest.encode())
        ask(server.port, f"/v0/routers/into-{dest}", body, "PUT")


def _read(bench: Bench, server: Running, source: str, lasts: Sequence[str], count: int) -> Reading:
    used, started = server.cpu_seconds(), time.perf_counter()
    body = append_body(BATCH)
    load = Load(path=f"/v0/topics/{source}", body=body, requests=count, connections=CONNECTIONS)
    measured = run(server.port, load)
    if fault := measured.fault():
        raise NotMeasured(fault)
    _wait_for_copies(server, source, lasts)
    seconds, used = time.perf_counter() - started, server.cpu_seconds() - used
    latency, records = measured.latency_us, count * BATCH
    return Reading(records / seconds, used / records * 1e6, latency.p50, latency.p99, answer_bytes=0.0)


def _wait_for_copies(server: Running, source: str, lasts: Sequence[str]) -> None:
    deadline = time.perf_counter() + TIMEOUT_SECONDS
    head = _head(server, source)
    for dest in lasts:
        while (copied := _head(server, dest)) != head:
            if time.perf_counter() > deadline:
                raise NotMeasured(f"{dest} has {copied} of {head} records after {TIMEOUT_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)


def _head(server: Running, topic: str) -> int:
    return int(ask(server.port, f"/v0/topics/{topic}", b"", "GET")["head_seq"])
