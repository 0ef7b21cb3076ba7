"""One line of the benchmark as reported: value, ceiling, ratio, goal and verdict.

The ratio counts, since the machine is shared and every absolute number varies; the ratio of the CPU cost of a
request varies least, and is reported for the case that the machine is busy.
"""

from __future__ import annotations

import msgspec

AIM = 0.9


class Goal(msgspec.Struct, frozen=True):
    """A bound for the ratio, or for the value itself."""

    bound: float
    of_value: bool = False
    at_most: bool = False

    def text(self, unit: str) -> str:
        sign = "≤" if self.at_most else "≥"
        return f"{sign} {number(self.bound)}{' ' + unit if self.of_value else ''}"


class Result(msgspec.Struct, kw_only=True):
    line: str
    title: str
    unit: str = ""
    value: float | None = None
    ceiling: float | None = None
    ratio: float | None = None
    cpu_ratio: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    ceiling_p99_us: float | None = None
    goal: Goal | None = None
    verdict: str = ""
    note: str = ""

    def judge(self) -> Result:
        self.verdict = verdict(self.goal, self.value, self.ratio)
        return self


def verdict(goal: Goal | None, value: float | None, ratio: float | None) -> str:
    """Return the verdict on a line.

    >>> verdict(Goal(0.66), 70_000, 0.7)
    'holds'
    >>> verdict(Goal(0.66), 70_000, 0.91), verdict(Goal(0.66), 70_000, 0.5)
    ('aim', 'missed')
    >>> verdict(Goal(160, of_value=True, at_most=True), 150, None), verdict(None, 1, None)
    ('holds', 'as measured')
    """
    if goal is None:
        return "as measured"
    judged = value if goal.of_value else ratio
    if judged is None:
        return "unknown"
    if goal.at_most:
        return "holds" if judged <= goal.bound else "missed"
    if judged < goal.bound:
        return "missed"
    return "aim" if not goal.of_value and judged >= AIM else "holds"


def number(value: float | None) -> str:
    """Return a number as text, with as many digits as matter.

    >>> number(71234.5), number(8.31), number(0.6666), number(None)
    ('71,234', '8.3', '0.67', '')
    """
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 3 else f"{value:.2f}"


HEADINGS = ("line", "value", "unit", "ceiling", "ratio", "cpu", "p99 ms", "goal", "verdict")


def table(results: list[Result]) -> str:
    """Return the results as a table for people, with the notes below it."""
    rows = [HEADINGS, *(row(result) for result in results)]
    widths = [max(len(cells[at]) for cells in rows) for at in range(len(HEADINGS))]
    lines = ["  ".join(aligned(cells, widths)).rstrip() for cells in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines + [f"{one.title}: {one.note}" for one in results if one.note])


def row(result: Result) -> tuple[str, ...]:
    return (
        result.title,
        number(result.value),
        result.unit,
        number(result.ceiling),
        number(result.ratio),
        number(result.cpu_ratio),
        number(None if result.p99_us is None else result.p99_us / 1000),
        "" if result.goal is None else result.goal.text(result.unit),
        result.verdict,
    )


def aligned(cells: tuple[str, ...], widths: list[int]) -> list[str]:
    """Align numbers to the right and words to the left."""
    return [
        cell.rjust(width) if heading in ("value", "ceiling", "ratio", "cpu", "p99 ms") else cell.ljust(width)
        for heading, cell, width in zip(HEADINGS, cells, widths, strict=True)
    ]
