"""One load on a running cluster: client processes, samples, summary."""

from __future__ import annotations

import secrets
import signal
import sys
import time
from typing import Any, Final

import msgspec

from loadtest.bench.subjects import environ as clean_environ
from loadtest.cluster.collector import Collector
from loadtest.cluster.hammer.routing import manifest
from loadtest.cluster.hammer.tally import ClientReport, client_summary
from loadtest.cluster.hammer.worker import report_path
from loadtest.cluster.run_folder import RunFolder, read_lines, write_json
from loadtest.cluster.scenario import Scenario
from loadtest.cluster.stack.cluster_stack import read_stack
from loadtest.cluster.stack.tracked import RUN_VARIABLE, Tracked, log_tail, start, stop
from loadtest.cluster.summary import make_summary

LOOK_SECONDS: Final = 0.05
EXTRA_SECONDS: Final = 60.0
"""How much longer than its scenario says a client process may take."""


class ClientFailed(Exception):
    """A client process ended without a report; the text has the end of its log."""


def run_load(folder: RunFolder) -> dict[str, Any]:
    """Put the load of a scenario on the cluster of a run; return the summary."""
    scenario, stack = folder.scenario, read_stack(folder)
    write_json(folder.manifest, manifest(scenario))
    samples_before = len(read_lines(folder.metrics))
    collector = Collector(folder, stack, scenario.sample_seconds)
    collector.sample()
    try:
        reports = _run_clients(scenario, folder, collector)
    finally:
        collector.sample()
        collector.close()
    write_json(folder.client_summary, client_summary(reports))
    summary = make_summary(folder, samples_before)
    write_json(folder.summary, summary)
    return summary


def _run_clients(scenario: Scenario, folder: RunFolder, collector: Collector) -> list[ClientReport]:
    token = secrets.token_hex(3)
    environ = {**clean_environ(), RUN_VARIABLE: str(folder.path)}
    numbers = range(scenario.client_processes)
    clients: list[Tracked] = []
    try:
        for number in numbers:
            report_path(folder, number).unlink(missing_ok=True)
            command = [sys.executable, "-m", "loadtest.cluster.hammer.worker"]
            command += [str(folder.path), str(number), token]
            log = folder.logs / f"client-{number}.log"
            clients.append(start(f"client-{number}", command, log, environ))
        until = time.monotonic() + scenario.seconds + scenario.drain_seconds + EXTRA_SECONDS
        while any(client.is_alive for client in clients) and time.monotonic() < until:
            collector.sample_when_due()
            time.sleep(LOOK_SECONDS)
    finally:
        for client in clients:
            stop(client, signal.SIGTERM, scenario.drain_seconds)
    reports = []
    for number in numbers:
        path = report_path(folder, number)
        if not path.exists():
            raise ClientFailed(f"client-{number}: {log_tail(clients[number])}")
        reports.append(msgspec.json.decode(path.read_bytes(), type=ClientReport))
    return reports
