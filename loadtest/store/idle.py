"""Requests of a server that does nothing, with many topics in the store (R7)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from loadtest.bench.restart_line import worker_of
from loadtest.bench.result import Result
from loadtest.bench.rounds import Bench
from loadtest.clients.generator import Load
from loadtest.clients.processes import Running, cpu_seconds
from loadtest.clients.traffic import append_body, create_topics, run_checked, targets
from loadtest.store.nodes import UNLIMITED, StorePlace, ask, wait_until
from shared.contract.store_prices import PRICES

TOPICS = 1000
OBJECTS_EACH = 3
"""The records, their index and the state of the topic."""
HOUR_SECONDS = 3600.0
MONTH_HOURS = 730.0
SECONDS_MIN = 90.0
SETTLE_SECONDS = 10.0
KINDS = ("create", "read", "info", "list", "delete")


def requests(server: Running) -> Any:
    """Return the numbers of requests so far, by kind."""
    return ask(server.port, "GET", "/v0/store")["requests"]


def idle(s3_url: str = "") -> Callable[[Bench], Result]:
    return partial(idle_at, s3_url=s3_url)


def idle_at(bench: Bench, s3_url: str) -> Result:
    """Count the requests of `bench.seconds` without a client, after all topics are exported."""
    names = [f"t{number}" for number in range(TOPICS)]
    place = StorePlace(bench, s3_url)
    settings = place.settings | UNLIMITED | {"TOPICS_EXPORT_INTERVAL_MS": "1000"}
    with bench.subjects.server(1, **settings) as server:
        create_topics(server.port, bench.home, names)
        pairs = [(f"/v0/topics/{name}", append_body(1)) for name in names]
        run_checked(
            server.port, Load(targets=targets(os.path.join(bench.home, "one"), pairs), requests=TOPICS)
        )
        wait_until(
            lambda: requests(server)["create"] >= TOPICS * OBJECTS_EACH, "a record of each topic exported"
        )
        time.sleep(SETTLE_SECONDS)
        worker = worker_of(server, 0)
        before, used = requests(server), cpu_seconds(worker)
        seconds = max(bench.seconds, SECONDS_MIN)
        time.sleep(seconds)
        after, used = requests(server), cpu_seconds(worker) - used
    counts = {kind: after[kind] - before[kind] for kind in KINDS}
    hours = seconds / HOUR_SECONDS
    s3 = PRICES["s3"]
    month = s3.requests(counts["create"] + counts["list"], counts["read"] + counts["info"])
    built = s3.requests(before["create"] + before["list"], before["read"] + before["info"])
    total = sum(counts.values()) / hours
    note = (
        f"{TOPICS:,} topics, {seconds:.0f} s: {counts}, {month / hours * MONTH_HOURS:.2f} dollars a month at "
        f"the prices of S3; {sum(before.values())} requests and {built:.4f} dollars before, for one record a "
        f"topic; {100 * used / seconds:.1f} % of a core"
    )
    return Result(line="", title="", unit="requests/h", value=total, note=note)
