from __future__ import annotations

import doctest

import pytest

from loadtest.bench import result as bench_result
from loadtest.bench.chart import bar
from loadtest.bench.lines import LINES
from loadtest.bench.result import Goal, Result, table
from loadtest.bench.rounds import Reading, medians
from loadtest.clients import traffic
from spark.chart.canvas import GREEN, GREY, RED


@pytest.mark.parametrize("module", [bench_result, traffic])
def test_the_examples_come_true(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0


def result(**more: object) -> Result:
    made = Result(line="writes", title="single writes")
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_the_table_has_numbers_under_their_headings_and_notes_below() -> None:
    lines = table(
        [
            result(
                value=70_123.4, ceiling=80_000.0, unit="requests/s", ratio=0.876, goal=Goal(0.66), p99_us=1520
            ).judge(),
            result(title="sealed", verdict="skipped", note="there are none"),
        ]
    ).splitlines()
    assert lines == [
        "line            value  unit        ceiling  ratio  cpu  p99 ms  goal    verdict",
        "-------------  ------  ----------  -------  -----  ---  ------  ------  -------",
        "single writes  70,123  requests/s   80,000   0.88         1.52  ≥ 0.66  holds",
        "sealed                                                                  skipped",
        "sealed: there are none",
    ]


def test_the_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    rates = [[10.0, 20.0, 90.0], [20.0, 20.0, 30.0]]
    rounds = [[Reading(rate, 0, 0, 0, 0) for rate in one] for one in rates]
    assert medians(rounds, lambda reading: reading.per_second) == (20, 20, 1.0)


def test_every_line_has_its_goal() -> None:
    goals = {name: line.goal for name, line in LINES.items()}
    assert goals["one"] == Goal(0.6)
    assert goals["remote"] == Goal(2, of_value=True, at_most=True)
    assert goals["memory"] == Goal(160, of_value=True, at_most=True)
    assert goals["sealed"] == Goal(10_000, of_value=True)
    assert goals["connections"] is None
    assert all(goals[name] == Goal(0.66) for name in ("writes", "fsync", "batches", "diff-1", "diff-1000"))


def test_a_bar_is_as_long_as_the_ratio_or_in_units_of_the_goal() -> None:
    good = bar(result(value=7.0, ratio=0.7, goal=Goal(0.66), verdict="holds"))
    assert (good.length, good.mark, good.color) == (0.7, 0.66, GREEN)
    missed = bar(result(value=320, unit="MiB", goal=Goal(160, of_value=True, at_most=True), verdict="missed"))
    assert (missed.length, missed.mark, missed.color) == (2.0, 1.0, RED)
    skipped = bar(result(goal=Goal(0.66), verdict="skipped"))
    assert (skipped.length, skipped.color) == (None, GREY)
    assert "skipped" in skipped.text
