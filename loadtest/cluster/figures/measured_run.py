"""One measured run of a scenario, and what its requests to the store cost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final, NamedTuple

from loadtest.cluster.bring_up import end_cluster, start_cluster
from loadtest.cluster.load_run import run_load
from loadtest.cluster.run_folder import new_run
from loadtest.cluster.scenario import Scenario
from shared.contract.store_prices import PRICES

GB: Final = 1e9
PRICE: Final = PRICES["s3"]
"""The price of requests, whatever store the run has."""


class NotVerified(Exception):
    """A run whose figures say nothing: records were lost, or totals disagree."""


class RequestCost(NamedTuple):
    """Requests to the store, and their price, for each GB of records."""

    requests: float
    dollars: float

    @property
    def text(self) -> str:
        return f"{self.requests:,.0f} requests and ${self.dollars:.4f} a GB"


class MeasuredRun(NamedTuple):
    summary: dict[str, Any]

    def of(self, kind: str, name: str) -> float:
        value: float = self.summary["client"][kind][name]
        return value

    def ms(self, kind: str, percentile: str) -> float:
        """Return a percentile of the latencies of a kind of request, or from end to end."""
        counted = self.summary["client"][kind]
        latencies = counted if kind == "end_to_end" else counted["latency"]
        ms: float = latencies.get(f"{percentile}_ms", 0.0)
        return ms

    def cost(self, kind: str) -> RequestCost:
        """Return the cost of the requests that writes, or that reads, made at the store."""
        store = self.summary["brokers"]["store"]
        if kind == "produce":
            return cost_of(store["put"] + store["list"], 0, self.of(kind, "bytes"))
        return cost_of(0, store["range_get"] + store["info"], self.of(kind, "bytes"))

    def cpu_us(self) -> float:
        """Return the CPU time of the nodes for each record that was written, in microseconds."""
        nodes: float = sum(
            seconds for name, seconds in self.summary["cpu_seconds"].items() if name.startswith("node-")
        )
        return nodes / max(self.of("produce", "records"), 1) * 1e6

    def mean_ms(self, name: str) -> float:
        """Return the mean of a duration that the bare program adds up over its batches."""
        metrics = [one for one in self.summary["last_sample"]["brokers"].values() if one]
        batches = sum(one["batches"] for one in metrics)
        seconds: float = sum(one[name] for one in metrics)
        return seconds / batches * 1000 if batches else 0.0


def cost_of(writes: int, reads: int, record_bytes: float) -> RequestCost:
    """Return the cost of requests to a store.

    >>> cost_of(200, 0, 1e9)
    RequestCost(requests=200.0, dollars=0.001)
    """
    if not record_bytes:
        return RequestCost(0.0, 0.0)
    gigabytes = record_bytes / GB
    return RequestCost((writes + reads) / gigabytes, PRICE.requests(writes, reads) / gigabytes)


def measure(scenario: Scenario, runs: Path) -> MeasuredRun:
    """Run a scenario in a cluster of its own; raise NotVerified when its check fails."""
    folder = new_run(scenario, runs)
    start_cluster(scenario, folder)
    try:
        summary = run_load(folder)
    finally:
        end_cluster(folder)
        # The objects of all runs would fill a disk.
        shutil.rmtree(folder.data, ignore_errors=True)
    reconciliation = summary["reconciliation"]
    if not reconciliation["is_ok"]:
        errors = [one.text for one in reconciliation["problems"] if one.level == "error"]
        raise NotVerified(f"{folder.path}: {'; '.join(errors)}")
    return MeasuredRun(summary)
