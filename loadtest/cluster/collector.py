"""Samples of a run: the metrics of each broker, its processes, and the machine."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Final

from loadtest.clients.processes import cpu_seconds, pss_bytes, tree
from loadtest.cluster.run_folder import Lines, RunFolder
from loadtest.cluster.stack.cluster_stack import Stack, get_json
from loadtest.cluster.stack.tracked import Tracked

HOST_MEMORY: Final = ("MemTotal", "MemAvailable", "Dirty", "Cached")
CPU_FIELDS: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


class Collector:
    """Writes a sample to `metrics-30s.jsonl` when the interval has passed, and when it is asked to."""

    def __init__(self, folder: RunFolder, stack: Stack, seconds: float) -> None:
        self._lines = Lines(folder.metrics)
        self._stack = stack
        self._seconds = seconds
        self._next = time.monotonic() + seconds

    def sample_when_due(self) -> None:
        if time.monotonic() >= self._next:
            self._next += self._seconds
            self.sample()

    def sample(self) -> dict[str, Any]:
        """Take a sample now."""
        taken = {
            "at": round(time.time(), 3),
            "brokers": {node.name: get_json(node.url, "/metrics") for node in self._stack.nodes},
            "processes": {one.name: process_sample(one) for one in self._stack.processes},
            "host": host_sample(),
        }
        self._lines.add(taken)
        return taken

    def close(self) -> None:
        self._lines.close()


def process_sample(tracked: Tracked) -> dict[str, Any] | None:
    """Return the cost of a process with its descendants; None when it is dead."""
    if not tracked.is_alive:
        return None
    pids = list(tree(tracked.pid))
    return {
        "pids": len(pids),
        "cpu_seconds": round(sum(cpu_seconds(pid) for pid in pids), 2),
        "pss_bytes": sum(pss_bytes(pid) for pid in pids),
        "open_files": sum(_open_files(pid) for pid in pids),
    }


def _open_files(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def host_sample() -> dict[str, Any]:
    """Return load, CPU time and memory of the machine."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(text) for text in file.readline().split()[1:9]]
    per_second = os.sysconf("SC_CLK_TCK")
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {
        "load": list(os.getloadavg()),
        "cpu_seconds": {name: count / per_second for name, count in zip(CPU_FIELDS, ticks, strict=True)},
        "memory_bytes": {name: int(fields[name].split()[0]) << 10 for name in HOST_MEMORY},
    }
