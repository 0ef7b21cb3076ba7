"""The cluster harness against real nodes, as its users run it: from `up` to `down`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtest.cluster.run_folder import RunFolder, open_run, read_lines
from loadtest.cluster.stack.cluster_stack import read_stack, stop_stack
from loadtest.cluster.stack.tracked import leftovers
from loadtest.cluster.summary import EXPECTED

pytestmark = pytest.mark.slow

FLAGS = (
    "smoke",
    "--seconds=1.5",
    "--sample-seconds=0.5",
    "--drain-seconds=10",
    "--request-timeout-seconds=5",
)


def command(runs: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "loadtest", "cluster", f"--runs={runs}", *arguments]


def run(runs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(runs, *arguments), capture_output=True, text=True, check=False, timeout=120)


def summary(folder: RunFolder) -> dict[str, Any]:
    read: dict[str, Any] = msgspec.json.decode(folder.summary.read_bytes())
    return read


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < until, what
        time.sleep(0.05)


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for path in tmp_path.iterdir():
        stop_stack(RunFolder(path))


def test_a_cluster_is_started_loaded_with_a_node_lost_and_ended(runs: Path) -> None:
    started = run(runs, "up", *FLAGS)
    assert started.returncode == 0, started.stderr
    folder = open_run("", runs)
    assert [node.name for node in read_stack(folder).nodes] == ["node-0", "node-1"]
    status = run(runs, "status")
    assert (status.returncode, status.stdout.count('"healthy"')) == (0, 2), status.stdout

    loaded = run(runs, "run", "--run", folder.path.name)
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    first = summary(folder)
    assert first["reconciliation"] == {"is_ok": True, "problems": []}
    acked = first["client"]["verification"]["acked"]
    assert acked == first["client"]["verification"]["read"] == first["brokers"]["produce"]["records"] > 0
    assert set(EXPECTED) <= set(first["artifacts"])
    assert read_lines(folder.remap_events) == []

    second = subprocess.Popen(command(runs, "run", "--run", folder.path.name), text=True)
    lines = len(read_lines(folder.client_samples))
    wait_until(lambda: len(read_lines(folder.client_samples)) > lines, "a sample of the second load")
    lost = read_stack(folder).nodes[1]
    os.killpg(lost.pid, signal.SIGKILL)
    assert second.wait(60) == 0, summary(folder)["reconciliation"]
    after = summary(folder)
    assert after["client"]["verification"]["violations"] == []
    assert after["client"]["verification"]["read"] >= after["client"]["verification"]["acked"] > 0
    assert after["brokers"]["is_complete"] is False
    assert [(event["event"], event["node"]) for event in read_lines(folder.remap_events)] == [
        ("down", "node-1")
    ]
    assert run(runs, "status").returncode == 1

    ended = run(runs, "down")
    assert ended.returncode == 0, ended.stderr
    assert set(ended.stdout.split()) >= {"node-0:", "ended", "node-1:", "gone"}
    assert list(leftovers(folder.path)) == []


def test_ctrl_c_ends_the_whole_cluster(runs: Path) -> None:
    running = subprocess.Popen(command(runs, "run", *FLAGS, "--seconds=60"))
    wait_until(lambda: any(runs.glob("*/client-30s.jsonl")), "the load")
    folder = open_run("", runs)
    assert len(list(leftovers(folder.path))) >= 3
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    assert list(leftovers(folder.path)) == []
    assert read_stack(folder).processes == []
