"""The locust scenarios run on a server of two shards without a failed request."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtest.bench.subjects import PROJECT, SERVER_COMMAND, Subjects, environ
from loadtest.clients.processes import Running

SECONDS = 5
USERS = 10


def has_server() -> bool:
    ran = subprocess.run(
        [*SERVER_COMMAND, "--help"], env=environ(), capture_output=True, check=False, timeout=30
    )
    return ran.returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("locust") is None,
        reason="locust is not installed: it is the extra `load`, pip install topicsd[load]",
    ),
    pytest.mark.skipif(not has_server(), reason="there is no server command, `topicsd serve`, yet"),
]


def run_locust(server: Running, directory: Path, *scenario: str) -> list[dict[str, Any]]:
    """Run locust; return its statistics by kind of request."""
    command = [
        *(sys.executable, "-m", "locust", "--locustfile", f"{PROJECT}/loadtest/locustfile.py"),
        *("--headless", "--only-summary", "--json", "--host", f"http://127.0.0.1:{server.port}"),
        *("--users", str(USERS), "--spawn-rate", str(USERS), "--run-time", f"{SECONDS}s", *scenario),
    ]
    done = subprocess.run(
        command, cwd=directory, env=environ(), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    tables: list[dict[str, Any]] = json.loads(done.stdout[done.stdout.index("[") :])
    return tables


@pytest.mark.parametrize("scenario", ["Writer", "Reader", "Mixed"])
def test_a_scenario_runs_without_a_failure(tmp_path: Path, scenario: str) -> None:
    with Subjects(str(tmp_path)).server(2) as server:
        tables = run_locust(server, tmp_path, scenario)
    assert sum(table["num_failures"] for table in tables) == 0
    assert sum(table["num_requests"] for table in tables) > USERS * SECONDS


def test_workers_finish_their_jobs_beside_silent_workers(tmp_path: Path) -> None:
    with Subjects(str(tmp_path)).server(2) as server:
        tables = run_locust(server, tmp_path, "JobWorker", "JobProducer")
    by_name = {table["name"]: table for table in tables}
    assert sum(table["num_failures"] for table in tables) == 0
    assert by_name["ack"]["num_requests"] > 0
    assert by_name["claim"]["num_requests"] > by_name["ack"]["num_requests"]


def test_watchers_get_each_record_of_the_writers(tmp_path: Path) -> None:
    with Subjects(str(tmp_path)).server(2) as server:
        tables = run_locust(server, tmp_path, "Watcher", "WatchedWriter")
    by_name = {table["name"]: table for table in tables}
    assert sum(table["num_failures"] for table in tables) == 0
    assert by_name["stream"]["num_requests"] == USERS // 2
    # Half of the watchers watch each topic, and one event may contain several appends.
    assert by_name["record"]["num_requests"] > by_name["append"]["num_requests"] / 2
    assert by_name["caught-up"]["num_requests"] > 0
