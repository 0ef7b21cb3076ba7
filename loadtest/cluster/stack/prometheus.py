"""Prometheus over the brokers of a run, where its program is installed (Debian: package `prometheus`).

The targets are in a file that Prometheus follows (`file_sd`). They are removed before the brokers end, so
that no broker that was stopped on purpose is reported as down. The labels of a target describe the run.
"""

from __future__ import annotations

import shutil
import urllib.request
from collections.abc import Mapping
from typing import Any

from loadtest.cluster.run_folder import RunFolder, write_json
from loadtest.cluster.scenario import Scenario
from loadtest.cluster.stack.cluster_stack import Stack
from loadtest.cluster.stack.engines import Started, wait_until
from loadtest.cluster.stack.programs import free_port
from loadtest.cluster.stack.tracked import start

PROGRAM = "prometheus"
NOT_INSTALLED = "prometheus is not installed; the run has no Prometheus (Debian: apt install prometheus)"
CONFIG = """\
global:
  scrape_interval: 5s
scrape_configs:
  - job_name: topicsd
    metrics_path: /metrics/prometheus
    file_sd_configs:
      - files: [targets.json]
        refresh_interval: 1s
"""


def targets(scenario: Scenario, folder: RunFolder, stack: Stack) -> list[dict[str, Any]]:
    """Return the document of `targets.json`: a group for each node, labelled with the shape of the run."""
    shape = {
        "run": folder.path.name,
        "scenario": scenario.name,
        "scenario_nodes": str(scenario.nodes),
        "scenario_catalog": scenario.catalog,
        "scenario_store": scenario.store,
        "scenario_partitions": str(scenario.topics * scenario.partitions),
        "scenario_linger_ms": str(scenario.linger_ms),
        "scenario_record_bytes": str(scenario.record_bytes),
    }
    return [
        {"targets": [f"127.0.0.1:{node.port}"], "labels": {**shape, "node": node.name}}
        for node in stack.nodes
    ]


def write_files(scenario: Scenario, folder: RunFolder, stack: Stack) -> None:
    folder.prometheus.mkdir(exist_ok=True)
    (folder.prometheus / "prometheus.yml").write_text(CONFIG, encoding="ascii")
    write_json(folder.prometheus / "targets.json", targets(scenario, folder, stack))


def start_prometheus(
    scenario: Scenario, folder: RunFolder, stack: Stack, environ: Mapping[str, str], on_start: Started
) -> bool:
    """Start Prometheus on a free port of 127.0.0.1; return False where it is not installed."""
    write_files(scenario, folder, stack)
    program = shutil.which(PROGRAM)
    if program is None:
        return False
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        program,
        f"--config.file={folder.prometheus}/prometheus.yml",
        f"--storage.tsdb.path={folder.data}/prometheus",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    tracked = start(PROGRAM, command, folder.logs / "prometheus.log", environ, port=port, url=url)
    on_start(tracked)
    wait_until(tracked, lambda: _is_ready(url))
    return True


def clear_targets(folder: RunFolder) -> None:
    """Remove the targets of a run, if it has any."""
    if folder.prometheus.exists():
        write_json(folder.prometheus / "targets.json", [])


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
