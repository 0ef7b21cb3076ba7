"""The latency of other shards while one shard is killed and restarted.

An open loop sends a quarter of the server's maximum rate to topics of the surviving shards. In every other
round the worker of the remaining shard, which receives no requests, is killed. The compared value is p99 with
and without the kill; the rounds alternate, so both see the same other load on the machine.
"""

from __future__ import annotations

import http.client
import os
import signal
import statistics
import threading
import time

import msgspec

from loadtest.bench.result import Result
from loadtest.bench.rounds import WARMUP_SECONDS, Bench, Reading, medians
from loadtest.clients.processes import Running
from loadtest.clients.traffic import NotMeasured, append_body, create_topics, names_of_shard, targets

SHARDS = 3
KILLED_SHARD = 1
CONNECTIONS = 4
SHARE = 4
# A worker that ends repeatedly is restarted after a wait that grows; the whole restart must fall into the
# measured time.
SECONDS_MIN = 3.0
TIMEOUT_SECONDS = 30.0


def others_of_a_restart(bench: Bench) -> Result:
    names = [next(names_of_shard(shard, SHARDS)) for shard in range(SHARDS) if shard != KILLED_SHARD]
    pairs = [(f"/v0/topics/{name}", append_body(1)) for name in names]
    path = targets(os.path.join(bench.home, "others"), pairs)
    with bench.subjects.server(SHARDS) as server:
        create_topics(server.port, bench.home, names)
        load = bench.load(targets=path, own_targets=True, connections=CONNECTIONS)
        most = bench.read(server, load).per_second
        seconds = max(bench.seconds, SECONDS_MIN)
        load = msgspec.structs.replace(load, seconds=seconds, rate=most / SHARE)

        def with_kill() -> Reading:
            victim = worker_of(server, KILLED_SHARD)
            killer = threading.Timer(WARMUP_SECONDS, os.kill, (victim, signal.SIGKILL))
            killer.start()
            try:
                return bench.read(server, load)
            finally:
                killer.join()
                wait_until_all_serve(server)

        rounds = bench.rounds_of(with_kill, lambda: bench.read(server, load))
    value, calm, ratio = medians(rounds, lambda reading: reading.p99_us)
    p50_us = statistics.median(reading.p50_us for reading in rounds[0])
    return Result(
        line="",
        title="",
        unit="ms of p99",
        value=value / 1000,
        ceiling=calm / 1000,
        ratio=ratio,
        p50_us=p50_us,
        p99_us=value,
        note=f"at {most / SHARE:,.0f} requests/s",
    )


def worker_of(server: Running, shard: int) -> int:
    """Return the pid of the worker of a shard, by the spec in its environment."""
    for pid in server.pids():
        with open(f"/proc/{pid}/environ", "rb") as file:
            if b'"shard":%d,' % shard in file.read():
                return pid
    raise NotMeasured(f"no worker of shard {shard} was found")


def wait_until_all_serve(server: Running) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("GET", "/v0/ready")
            answer = connection.getresponse()
            if answer.status == 200 and msgspec.json.decode(answer.read())["status"] == "ready":
                return
        finally:
            connection.close()
        time.sleep(0.02)
    raise NotMeasured(f"the killed worker did not serve again within {TIMEOUT_SECONDS:.0f} s")
