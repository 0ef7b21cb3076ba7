"""The history of benchmarks in `loadtest/results/`: one JSON line per run."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from typing import Any

import msgspec

RESULTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "results")


def save(name: str, lines: list[Any], **more: Any) -> str:
    """Add a run, with machine and commit, to the file of a benchmark; return its path."""
    result = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "python": platform.python_version(),
        **more,
        "lines": lines,
    }
    os.makedirs(RESULTS, exist_ok=True)
    path = os.path.join(RESULTS, f"{name}.jsonl")
    with open(path, "ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")
    return path


def _commit() -> str:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=os.path.dirname(RESULTS),
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"
