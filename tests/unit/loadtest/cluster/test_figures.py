from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtest.cluster.figures import figure_lines
from loadtest.cluster.figures.figure_lines import FIGURES, FigureRun, figure_names
from loadtest.cluster.figures.measured_run import MeasuredRun, NotVerified
from loadtest.cluster.hammer.tally import KindTally, Tally
from loadtest.cluster.scenario import Scenario, ScenarioError, make_scenario


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_load_that_can_be_run(name: str) -> None:
    scenario = make_scenario({"name": name, **FIGURES[name].load})
    assert scenario.producers


def run_with(scenario: Scenario, us: int, records: int) -> MeasuredRun:
    tally = Tally(
        *(KindTally(records=records, bytes=records * 100, first_at=1.0, last_at=11.0) for _ in "12")
    )
    for latencies in (tally.produce.latencies, tally.consume.latencies, tally.end_to_end):
        latencies.add(us)
    metrics = {"batches": 4, "put_seconds": 0.02, "commit_seconds": 0.008}
    return MeasuredRun(
        {
            "client": tally.summary(),
            "brokers": {"store": {"put": 10, "list": 0, "range_get": 40, "info": 0}},
            "cpu_seconds": {"node-0": us / 1000, "store": 9.0},
            "last_sample": {"brokers": {"node-0": metrics}},
        }
    )


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """Measure nothing: the bare program is twice as fast, and two nodes as fast as one."""
    scenarios: list[Scenario] = []

    def measure(scenario: Scenario, runs: Path) -> MeasuredRun:
        scenarios.append(scenario)
        is_bare = scenario.program == "bare"
        return run_with(scenario, 1000 if is_bare else 2000, 2000 if is_bare else 1000)

    monkeypatch.setattr(figure_lines, "measure", measure)
    return scenarios


@pytest.mark.parametrize(
    ("name", "value", "ceiling"), [("write-50-100", 100.0, 200.0), ("ack-50", 2.0, 1.0), ("across", 2.0, 1.0)]
)
def test_a_ratio_of_one_is_as_good_as_the_bare_program(
    measured: list[Scenario], tmp_path: Path, name: str, value: float, ceiling: float
) -> None:
    line = FigureRun({"store": "s3"}, 3, tmp_path).line(name)
    assert (line.value, line.ceiling, line.ratio, line.verdict) == (value, ceiling, 0.5, "missed")
    # Twice the CPU time for half of the records.
    assert line.cpu_ratio == (pytest.approx(0.25) if name == "write-50-100" else None)
    assert [one.program for one in measured] == ["topicsd", "bare", "bare", "topicsd", "topicsd", "bare"]
    assert {one.store for one in measured} == {"s3"}
    assert "PUT 5.0 ms, commit 2.0 ms" in line.note


def test_two_brokers_are_compared_with_one(measured: list[Scenario], tmp_path: Path) -> None:
    line = FigureRun({}, 1, tmp_path).line("two-brokers")
    assert [(one.nodes, one.owners, one.program) for one in measured] == [
        (2, 2, "topicsd"),
        (1, 1, "topicsd"),
    ]
    assert (line.ratio, line.verdict) == (1.0, "as measured")


def test_the_cost_of_writes_is_that_of_puts_and_the_cost_of_reads_that_of_gets() -> None:
    run = run_with(make_scenario({}), 1, 10_000_000)
    assert run.cost("produce").requests == 10
    assert run.cost("produce").dollars == pytest.approx(10 * 0.005 / 1000)
    assert run.cost("consume").requests == 40
    assert run.cost("consume").dollars == pytest.approx(40 * 0.0004 / 1000)


def test_a_run_with_lost_records_gives_no_figure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def measure(scenario: Scenario, runs: Path) -> Any:
        raise NotVerified("3 records were lost")

    monkeypatch.setattr(figure_lines, "measure", measure)
    line = FigureRun({}, 1, tmp_path).line("tail")
    assert (line.verdict, line.value, line.note) == ("failed", None, "3 records were lost")


def test_an_unknown_figure_is_refused_with_the_known_ones() -> None:
    assert figure_names([]) == list(FIGURES)
    with pytest.raises(ScenarioError, match="must be one of write-250-100"):
        figure_names(["write"])
