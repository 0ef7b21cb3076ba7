"""A sweep that ends a program at each of its requests to a store or a catalog, one request a run.

A run without an ending lists the points of each program: before a request, and before its answer. Then the
script runs once for each point and each way to end there: the process is killed, the power is cut, or the
process is killed while the request is on its way, which is then done long after the restart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests.harness.cluster.scripted.final_check import check_end
from tests.harness.cluster.scripted.scripted_run import Ending, ScriptedRun
from tests.harness.cluster.scripted.scripts import SCRIPTS, Script
from tests.harness.machine.faults import MachineGoneError, PowerCut, ProcessKilled
from tests.harness.sweeps.attempts import attempt

Way = tuple[type[MachineGoneError], bool]
"""How a program ends, and whether its request is on its way then."""
WAYS: Final[tuple[Way, ...]] = ((ProcessKilled, False), (PowerCut, False), (ProcessKilled, True))
KINDS: Final = {
    (ProcessKilled, False): "requests, processes killed",
    (PowerCut, False): "requests, power cuts",
    (ProcessKilled, True): "requests, processes killed with one on its way",
}
TRACE_LINES: Final = 40


def points_of(script: Script) -> dict[str, list[str]]:
    """Return the points of each program, up to the last judgement."""
    run = ScriptedRun(script.__name__, None)
    points: dict[str, list[str]] = {}

    def judge(run: ScriptedRun) -> None:
        points.update({name: list(labels) for name, labels in run.cluster.network.points.items()})
        check_end(run)

    run.play(script, judge)
    return points


def all_endings(script: Script) -> Iterator[Ending]:
    """Yield each ending of a script."""
    for program, labels in points_of(script).items():
        for point, label in enumerate(labels, 1):
            for error, is_sent in WAYS:
                if not (is_sent and label.startswith("answer ")):
                    yield Ending(program, point, error, is_sent)


def some_endings(script: Script, seen: Counter[str]) -> Iterator[Ending]:
    """Yield the first ending of a script at each kind of point, unless `seen` has all ways to end there."""
    for program, labels in points_of(script).items():
        kinds: set[str] = set()
        for point, label in enumerate(labels, 1):
            kind = kind_of(label)
            ways = WAYS if not label.startswith("answer ") else WAYS[:2]
            if kind in kinds or seen[kind] == len(ways):
                continue
            kinds.add(kind)
            error, is_sent = ways[seen[kind]]
            seen[kind] += 1
            yield Ending(program, point, error, is_sent)


def kind_of(label: str) -> str:
    """Return the kind of a request or an answer: its verb, what it is about, and the suffix of the key.

    >>> kind_of("answer create segments/0000000000000007-1024/1-seg-0000000000010001-5f9a01c2.data")
    'answer create .data'
    >>> kind_of("publish log add ['1-4'] remove []")
    'publish log add remove'
    """
    words = " ".join(word for word in label.split() if word.isalpha())
    suffix = re.search(r"[.][a-z]+", label)
    return f"{words} {suffix.group()}" if suffix else words


def end_once(
    name: str, program: str, point: int, error: type[MachineGoneError], is_sent: bool = False
) -> None:
    """Run one script with one ending, and count it."""
    script = next(one for one in SCRIPTS if one.__name__ == name)
    run = ScriptedRun(name, Ending(program, point, error, is_sent))
    replay = f"end_once({name!r}, {program!r}, {point}, {error.__name__}, {is_sent})"
    with attempt(KINDS[error, is_sent], replay, lambda: run.steps):
        play(script, run)


def play(script: Script, run: ScriptedRun) -> None:
    try:
        run.play(script, check_end)
        assert run.has_ended, "the program did not end"
    except Exception as failure:
        for line in run.world.trace[-TRACE_LINES:]:
            failure.add_note(line)
        raise


def sweep(script: Script, endings: Iterator[Ending]) -> int:
    """Run a script with each ending; return their number."""
    count = 0
    for ending in endings:
        end_once(script.__name__, *ending)
        count += 1
    return count
