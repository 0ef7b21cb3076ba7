"""The results of a benchmark as bars: the share of the ceiling, with a mark at the goal.

A line that has a goal of its own instead of a ceiling is drawn in units of that goal.
"""

from __future__ import annotations

from loadtest.bench.png_chart import Bar, draw
from loadtest.bench.result import Goal, Result, number
from spark.chart.canvas import GREEN, GREY, RED

COLORS = {"aim": GREEN, "holds": GREEN, "missed": RED}


def bar(result: Result) -> Bar:
    length, mark = extent(result.goal, result.value, result.ratio)
    goal = "" if result.goal is None else result.goal.text("").replace("≥", ">=").replace("≤", "<=")
    value = f"{number(result.value)} {result.unit}" if result.value is not None else ""
    ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
    text = "  ".join(part for part in (ratio, goal.strip(), value or result.verdict) if part)
    return Bar(result.title, text, length, mark, COLORS.get(result.verdict, GREY))


def extent(goal: Goal | None, value: float | None, ratio: float | None) -> tuple[float | None, float | None]:
    """Return the length of the bar and the position of the mark."""
    if goal is not None and goal.of_value:
        return (None if value is None else value / goal.bound), 1.0
    return ratio, None if goal is None else goal.bound


def chart(results: list[Result], heading: str) -> bytes:
    return draw(heading, [bar(result) for result in results])
