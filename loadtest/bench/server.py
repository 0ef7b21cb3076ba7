"""`python -m loadtest bench`: each line with its own directory and processes.

A line that cannot be measured reports the cause, and the next line follows; no process of a line outlives it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence

from loadtest.bench.lines import LINES, Bench, Line
from loadtest.bench.result import Result
from loadtest.bench.subjects import Subjects
from loadtest.clients import generator
from loadtest.clients.generator import GeneratorMissing, LoadFailed
from loadtest.clients.processes import NotStarted
from loadtest.clients.traffic import NotMeasured

CORES = 2


def run(
    names: Sequence[str],
    seconds: float,
    rounds: int,
    directory: str | None,
    server_command: Sequence[str],
    lines: Mapping[str, Line] = LINES,
) -> list[Result]:
    """Measure the lines; print a sentence as each ends."""
    generator.program()
    confine()
    results = []
    for name in names:
        result = measure(name, lines[name], seconds, rounds, directory, server_command)
        results.append(result)
        ratio = "" if result.ratio is None else f", ratio {result.ratio:.2f}"
        print(
            f"{result.title}: {result.verdict}{ratio}{': ' + result.note if result.note else ''}", flush=True
        )
    return results


def confine() -> None:
    """Confine all started processes to two cores, so that figures of larger machines compare."""
    allowed = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, allowed[:CORES])


def measure(
    name: str,
    line: Line,
    seconds: float,
    rounds: int,
    directory: str | None,
    server_command: Sequence[str],
) -> Result:
    with tempfile.TemporaryDirectory(prefix="topicsd-bench-", dir=directory) as home:
        bench = Bench(Subjects(home, server_command), seconds, rounds)
        try:
            result = line.measure(bench)
            result.line, result.title, result.goal = name, line.title, line.goal
            return result.judge()
        except (NotMeasured, NotStarted, LoadFailed, subprocess.TimeoutExpired, GeneratorMissing) as why:
            verdict, note = "failed", str(why)
    return Result(line=name, title=line.title, goal=line.goal, verdict=verdict, note=note)
