"""A chart of horizontal bars as a PNG."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from spark.chart.canvas import BLACK, GREY, LIGHT, Canvas

ROW = 34
MARGIN = 16
TITLE_WIDTH = 580
BAR_WIDTH = 560
TEXT_WIDTH = 460
WIDTH = TITLE_WIDTH + BAR_WIDTH + TEXT_WIDTH
# A bar of length 1 ends before the right edge, so that a bar can exceed the ceiling.
UNITS = 1.25


class Bar(msgspec.Struct, frozen=True):
    """One bar; `length` and `mark` are in units of the ceiling, and None draws nothing."""

    title: str
    text: str
    length: float | None
    mark: float | None
    color: int = GREY


def draw(heading: str, bars: Sequence[Bar]) -> bytes:
    """Return the chart as the bytes of a PNG file."""
    height = ROW * (len(bars) + 1) + 2 * MARGIN
    canvas = Canvas(WIDTH, height)
    canvas.write(MARGIN, MARGIN, heading)
    bottom = height - MARGIN
    canvas.fill(_across(1.0), MARGIN + ROW - 6, 2, bottom - MARGIN - ROW + 6, LIGHT)
    for number, bar in enumerate(bars):
        top = MARGIN + ROW * (number + 1)
        canvas.write(MARGIN, top + 4, bar.title)
        if bar.length is not None:
            end = min(_across(bar.length), TITLE_WIDTH + BAR_WIDTH)
            canvas.fill(TITLE_WIDTH, top, end - TITLE_WIDTH, ROW - 10, bar.color)
        if bar.mark is not None:
            canvas.fill(_across(bar.mark) - 1, top - 3, 3, ROW - 4, BLACK)
        canvas.write(TITLE_WIDTH + BAR_WIDTH + MARGIN, top + 4, bar.text)
    return canvas.png()


def _across(length: float) -> int:
    return TITLE_WIDTH + round(length / UNITS * BAR_WIDTH)
