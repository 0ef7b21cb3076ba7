"""Writes to a server with an object store and a catalog, beside servers without.

The cost is the CPU time of the worker for one request, because the rate of a shared machine says little.
Three servers take turns: with a store, without, and without again. The ratio of the last two is the noise of
the measurement, which the note gives.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from loadtest.bench.restart_line import worker_of
from loadtest.bench.result import Result
from loadtest.bench.rounds import Bench
from loadtest.clients.generator import Load, run
from loadtest.clients.processes import Running, cpu_seconds
from loadtest.clients.traffic import NotMeasured, append_body, create_topics

CONNECTIONS = 32
REQUESTS_A_SECOND = 15_000
NAME = "x"


class Cost(NamedTuple):
    cpu_us: float
    per_second: float


def local_writes(is_exporting: bool, records: int = 1) -> Callable[[Bench], Result]:
    """Measure with no export in the measured time, or with checkpoints and exports all the time."""

    def measure(bench: Bench) -> Result:
        store = os.path.join(bench.home, "store")
        os.mkdir(store)
        plain = {"TOPICS_CHECKPOINT_INTERVAL_MS": "2000"} if is_exporting else {}
        stored = plain | {"TOPICS_STORE_URL": f"file://{store}"}
        if is_exporting:
            stored |= {"TOPICS_EXPORT_INTERVAL_MS": "1000", "TOPICS_BACKGROUND_BYTES_PER_SECOND": "1 GiB"}
        start = bench.subjects.server
        with start(1, **stored) as with_store, start(1, **plain) as without, start(1, **plain) as again:
            takes = []
            for server in (with_store, without, again):
                create_topics(server.port, bench.home, [NAME])
                takes.append(partial(cost, server, worker_of(server, 0), request_load(bench, records)))
                takes[-1]()
            rounds = []
            for number in range(bench.rounds):
                order = [(number + at) % len(takes) for at in range(len(takes))]
                taken = {at: takes[at]() for at in order}
                rounds.append([taken[at] for at in range(len(takes))])
        return result_of(rounds)

    return measure


def request_load(bench: Bench, records: int) -> Load:
    requests = max(1000, int(bench.seconds * REQUESTS_A_SECOND / records))
    return Load(
        path=f"/v0/topics/{NAME}", body=append_body(records), connections=CONNECTIONS, requests=requests
    )


def cost(server: Running, worker: int, load: Load) -> Cost:
    before = cpu_seconds(worker)
    measured = run(server.port, load)
    used = cpu_seconds(worker) - before
    if fault := measured.fault():
        raise NotMeasured(fault)
    return Cost(used / measured.sent * 1e6, measured.per_second)


def result_of(rounds: list[list[Cost]]) -> Result:
    middle = statistics.median
    ratios = [first.cpu_us / second.cpu_us for first, second, _ in rounds]
    noise = [third.cpu_us / second.cpu_us for _, second, third in rounds]
    rates = [first.per_second / second.per_second for first, second, _ in rounds]
    low, high = min(ratios), max(ratios)
    totals = [sum(one[at].cpu_us for one in rounds) for at in range(3)]
    note = (
        f"{middle(one[0].cpu_us for one in rounds):.1f} us of the worker for a request with a store, "
        f"{middle(one[1].cpu_us for one in rounds):.1f} without; ratios {low:.2f} to {high:.2f}, "
        f"of all rounds together {totals[0] / totals[1]:.3f}; without over without {middle(noise):.3f}, "
        f"together {totals[2] / totals[1]:.3f}; requests/s {middle(rates):.2f}"
    )
    return Result(line="", title="", unit="x the CPU", value=middle(ratios), note=note)
