"""The folder of a run: every file that a run leaves, and the names of the files.

`resolved-config.json` and `stack.json` are what later commands go by.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from loadtest.cluster.scenario import Scenario

PROJECT: Final = Path(__file__).resolve().parents[2]
RUNS: Final = PROJECT / "loadtest" / "runs"


class NoRun(Exception):
    """No folder of a run is where one was named."""


class RunFolder:
    """The paths of a run. Scenario, stack and the other documents are JSON files that a person may read."""

    def __init__(self, path: Path) -> None:
        path = path.resolve()
        self.path = path
        self.config = path / "resolved-config.json"
        self.stack = path / "stack.json"
        self.layout = path / "broker-layout.json"
        self.environment = path / "environment.json"
        self.manifest = path / "routing-manifest.json"
        self.metrics = path / "metrics-30s.jsonl"
        self.client_samples = path / "client-30s.jsonl"
        self.client_summary = path / "client-summary.json"
        self.remap_events = path / "remap-events.jsonl"
        self.traces = path / "request-traces.jsonl"
        self.summary = path / "summary.json"
        self.logs = path / "logs"
        self.data = path / "data"
        self.prometheus = path / "prometheus"

    @property
    def scenario(self) -> Scenario:
        return msgspec.json.decode(self.config.read_bytes(), type=Scenario)

    def artifacts(self) -> dict[str, int]:
        """Return the sizes of the files of the run, by name."""
        files = sorted(path for path in self.path.rglob("*") if path.is_file())
        kept = [path for path in files if self.data not in path.parents]
        return {path.relative_to(self.path).as_posix(): path.stat().st_size for path in kept}


def new_run(scenario: Scenario, runs: Path = RUNS) -> RunFolder:
    """Make the folder of a run, with the scenario and the environment in it."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    name, count = f"{stamp}-{scenario.name}", 1
    runs.mkdir(parents=True, exist_ok=True)
    while True:
        path = runs / (name if count == 1 else f"{name}-{count}")
        try:
            path.mkdir()
            break
        except FileExistsError:
            count += 1
    folder = RunFolder(path)
    folder.logs.mkdir()
    folder.data.mkdir()
    write_json(folder.config, scenario)
    write_json(folder.environment, environment())
    return folder


def open_run(name: str, runs: Path = RUNS) -> RunFolder:
    """Return the run with this path or name; without a name, the last one."""
    if name:
        path = Path(name) if Path(name).is_dir() else runs / name
    else:
        path = max((one for one in runs.glob("*") if one.is_dir()), default=runs, key=lambda one: one.name)
    folder = RunFolder(path)
    if not folder.config.exists():
        raise NoRun(f"{path}: no run; start one with `python -m loadtest cluster up`")
    return folder


def write_json(path: Path, value: Any) -> None:
    """Replace a file by a document; a reader finds the old one or the new one."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    os.replace(beside, path)


class Lines:
    """A file of JSON lines that several processes append to: a line is written by one call."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, *values: Any) -> None:
        os.write(self._file, b"".join(msgspec.json.encode(value) + b"\n" for value in values))

    def close(self) -> None:
        os.close(self._file)


def read_lines(path: Path) -> list[Any]:
    if not path.exists():
        return []
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def environment() -> dict[str, Any]:
    """Describe the code and the machine of a run."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _git("rev-parse", "HEAD"),
        "branch": _git("rev-parse", "--abbrev-ref", "HEAD"),
        "changed_files": _git("status", "--porcelain").splitlines(),
        "python": sys.version,
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "settings": {name: text for name, text in os.environ.items() if name.startswith("TOPICS_")},
    }


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
