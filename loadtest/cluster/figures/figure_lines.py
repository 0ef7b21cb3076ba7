"""The figures of brokers, each beside the bare program under the same load."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from loadtest.bench import history
from loadtest.bench.result import Goal, Result, table
from loadtest.cluster.figures.measured_run import MeasuredRun, NotVerified, measure
from loadtest.cluster.run_folder import new_run, write_json
from loadtest.cluster.scenario import Scenario, ScenarioError, make_scenario

GOAL: Final = Goal(0.66)
Kind = str

# Four batches of records under way, so that neither the age of a batch nor the wait of a client is the limit.
WRITES: Final = {"producers": 320, "partitions": 16, "consumers": 0}
FULL: Final = {
    100: {**WRITES, "record_bytes": 100, "records_per_request": 1000},
    1024: {**WRITES, "record_bytes": 1024, "records_per_request": 100},
}
# A tenth of what a broker can do, so that a latency is no wait for the processor.
LIGHT: Final = {
    "producers": 8,
    "partitions": 8,
    "consumers": 2,
    "records_per_request": 10,
    "records_per_second": 500,
}
BACKLOG: Final = {**FULL[100], "consumers": 4, "consume": "catch_up", "drain_seconds": 120.0}
OTHER_NODE: Final = {"nodes": 2, "owners": 1, "readers": "others"}


class Figure(NamedTuple):
    """A line: a load, the number that counts, and whether a higher one is better."""

    title: str
    unit: str
    load: dict[str, Any]
    value: Callable[[MeasuredRun], float]
    kind: Kind
    """The request whose latencies and cost are reported."""
    has_ceiling: bool = True
    is_time: bool = False


def rate(kind: Kind) -> Callable[[MeasuredRun], float]:
    return lambda run: run.of(kind, "records_per_second")


def p50(kind: Kind) -> Callable[[MeasuredRun], float]:
    return lambda run: run.ms(kind, "p50")


def writes(linger_ms: int, size: int) -> Figure:
    title = f"writes of {size} B, linger {linger_ms} ms"
    load = {**FULL[size], "linger_ms": linger_ms}
    return Figure(title, "records/s", load, rate("produce"), "produce")


def acks(linger_ms: int) -> Figure:
    load = {**LIGHT, "consumers": 0, "linger_ms": linger_ms}
    title = f"time to the acknowledgement, linger {linger_ms} ms"
    return Figure(title, "ms", load, p50("produce"), "produce", is_time=True)


def reads(title: str, **more: Any) -> Figure:
    return Figure(title, "records/s", {**BACKLOG, "linger_ms": 50, **more}, rate("consume"), "consume")


def end_to_end(title: str, **more: Any) -> Figure:
    load = {**LIGHT, "linger_ms": 50, **more}
    return Figure(title, "ms", load, p50("end_to_end"), "end_to_end", is_time=True)


FIGURES: Final = {
    "write-250-100": writes(250, 100),
    "write-250-1024": writes(250, 1024),
    "write-50-100": writes(50, 100),
    "write-50-1024": writes(50, 1024),
    "ack-250": acks(250),
    "ack-50": acks(50),
    "tail": reads("reads of what is in memory"),
    "catch-up": reads("reads at a node that has to fetch all", **OTHER_NODE),
    "end-to-end": end_to_end("from write to read, same node"),
    "across": end_to_end("from write to read, across nodes", **OTHER_NODE),
    "two-brokers": writes(50, 100)._replace(title="two brokers over one", has_ceiling=False),
}


class FigureRun:
    """Measures figures; each value is the median of the rounds."""

    def __init__(self, changes: dict[str, Any], rounds: int, runs: Path) -> None:
        """`changes` are fields of every scenario: store, catalog, seconds."""
        self._changes = changes
        self._rounds = rounds
        self._runs = runs

    def line(self, name: str) -> Result:
        """Measure a line; one that cannot be measured has the verdict failed."""
        figure = FIGURES[name]
        load = {"name": name, "trace_share": 0.0, **figure.load, **self._changes}
        try:
            if name == "two-brokers":
                return self._compared(name, figure, {**load, "nodes": 2, "owners": 2}, load)
            return self._compared(name, figure, load, {**load, "program": "bare"})
        except NotVerified as problem:
            return Result(line=name, title=figure.title, verdict="failed", note=str(problem))

    def _compared(self, name: str, figure: Figure, load: dict[str, Any], against: dict[str, Any]) -> Result:
        """Measure both loads in turn, in alternating order."""
        scenarios = (make_scenario(load), make_scenario(against))
        ours: list[MeasuredRun] = []
        theirs: list[MeasuredRun] = []
        for number in range(self._rounds):
            order = ((ours, scenarios[0]), (theirs, scenarios[1]))
            for runs, scenario in order if number % 2 == 0 else reversed(order):
                runs.append(measure(scenario, self._runs))
        return self._result(name, figure, scenarios[0], ours, theirs)

    def _result(
        self,
        name: str,
        figure: Figure,
        scenario: Scenario,
        ours: list[MeasuredRun],
        theirs: list[MeasuredRun],
    ) -> Result:
        value, ceiling = (median(runs, figure.value) for runs in (ours, theirs))
        ratio = ceiling / value if figure.is_time else value / ceiling
        # The CPU time of a run that also reads would be that of both.
        only_writes = not scenario.consumers and not figure.is_time
        cpu_ratio = median(theirs, MeasuredRun.cpu_us) / max(median(ours, MeasuredRun.cpu_us), 1e-9)
        return Result(
            line=name,
            title=figure.title,
            unit=figure.unit,
            value=value,
            ceiling=ceiling,
            ratio=ratio,
            cpu_ratio=cpu_ratio if only_writes else None,
            p50_us=median(ours, p50(figure.kind)) * 1000,
            p99_us=median(ours, lambda run: run.ms(figure.kind, "p99")) * 1000,
            ceiling_p99_us=median(theirs, lambda run: run.ms(figure.kind, "p99")) * 1000,
            goal=GOAL if figure.has_ceiling else None,
            note=note(figure, scenario, ours, theirs),
        ).judge()


def median(runs: list[MeasuredRun], of: Callable[[MeasuredRun], float]) -> float:
    return statistics.median(of(run) for run in runs)


def note(figure: Figure, scenario: Scenario, ours: list[MeasuredRun], theirs: list[MeasuredRun]) -> str:
    """Return what the table has no column for: percentiles, MB/s, cost, the parts of a wait."""
    kind = figure.kind
    texts = [percentiles(ours, kind)]
    if kind != "end_to_end":
        texts.append(f"{median(ours, lambda run: run.of(kind, 'mb_per_second')):.1f} MB/s")
        texts.append(ours[-1].cost(kind).text)
    if figure.has_ceiling:
        put = median(theirs, lambda run: run.mean_ms("put_seconds"))
        commit = median(theirs, lambda run: run.mean_ms("commit_seconds"))
        texts.append(f"bare {percentiles(theirs, kind)}")
        texts.append(f"linger {scenario.linger_ms} ms, PUT {put:.1f} ms, commit {commit:.1f} ms")
    return "; ".join(texts)


def percentiles(runs: list[MeasuredRun], kind: Kind) -> str:
    half = median(runs, lambda run: run.ms(kind, "p50"))
    most = median(runs, lambda run: run.ms(kind, "p99"))
    return f"p50 {half:.1f} ms, p99 {most:.1f} ms"


def run_figures(names: list[str], changes: dict[str, Any], rounds: int, save: bool, runs: Path) -> int:
    """Measure lines, print the table, save the JSON; return 1 when a line failed."""
    folder = new_run(make_scenario({"name": "figures", **changes}), runs)
    figures = FigureRun(changes, rounds, folder.path / "runs")
    results = []
    for name in names:
        results.append(figures.line(name))
        print(table(results[-1:]).splitlines()[2], flush=True)
        write_json(folder.path / "figures.json", {"changes": changes, "rounds": rounds, "lines": results})
    print("\n" + table(results))
    print(f"saved: {folder.path}/figures.json")
    if save:
        history.save("cluster", results, rounds=rounds, changes=changes)
    return int(any(line.verdict == "failed" for line in results))


def figure_names(given: list[str]) -> list[str]:
    """Return the lines to measure; raise ScenarioError for an unknown one."""
    unknown = [name for name in given if name not in FIGURES]
    if unknown:
        raise ScenarioError(f"unknown figure {unknown[0]}; must be one of {', '.join(FIGURES)}")
    return given or list(FIGURES)
