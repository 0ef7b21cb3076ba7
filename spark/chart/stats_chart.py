"""A chart of topic statistics: a row for each topic, a column for each hour.

The height of a column is relative to the topic's largest hour; red below the line are the seqs that are gone.
The end of a row shows the topic's sums and its cursor with the largest lag.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark.chart.canvas import BLACK, GREEN, GREY, LIGHT, RED, Canvas
from spark.jobs.cursor_lags import CursorLag
from spark.jobs.hour_stats import HOUR_S, Hour, TopicSum
from spark.jobs.stats_text import hour_name
from topicsd.offline.table import plural, size

TOPICS_MAX = 40
HOURS_MAX = 336
MARGIN = 16
TITLE_WIDTH = 330
PLOT_WIDTH = 700
TEXT_WIDTH = 560
WIDTH = TITLE_WIDTH + PLOT_WIDTH + TEXT_WIDTH
ROW, UP, DOWN = 84, 40, 14
TITLE_CHARACTERS = 26
"""The characters of a title that fit."""


def stats_chart(sums: Sequence[TopicSum], hours: Sequence[Hour], lags: Sequence[CursorLag]) -> bytes:
    """Draw the topics with the most records and the newest hours, as far as they fit."""
    shown = sorted(sums, key=lambda one: (-one.records, one.topic))[:TOPICS_MAX]
    last = max((one.begins_s for one in hours), default=0)
    first = max(min((one.begins_s for one in hours), default=0), last - (HOURS_MAX - 1) * HOUR_S)
    canvas = Canvas(WIDTH, 2 * MARGIN + ROW * (len(shown) + 1))
    count = (last - first) // HOUR_S + 1
    span = f"{hour_name(first)} to {hour_name(last)} UTC" if hours else "no records"
    left_out = f", {len(shown)} of {len(sums)} topics" if len(shown) < len(sums) else ""
    canvas.write(MARGIN, MARGIN, f"records by topic and hour, {span}{left_out}; red: seqs that are gone")
    for number, one in enumerate(shown):
        line = MARGIN + ROW * (number + 1) + UP
        canvas.write(MARGIN, line - 16, _short(one.topic))
        canvas.fill(TITLE_WIDTH, line, PLOT_WIDTH, 1, LIGHT)
        own = [hour for hour in hours if hour.topic == one.topic and hour.begins_s >= first]
        _columns(canvas, own, first, count, line)
        text = f"{plural(one.records, 'record')}, {size(one.bytes)}"
        canvas.write(TITLE_WIDTH + PLOT_WIDTH + MARGIN, line - 34, text)
        slowest = max((lag for lag in lags if lag.topic == one.topic), key=_lag_records, default=None)
        text = f"{one.gone:,} gone"
        if slowest is not None:
            text += f"; {_short(slowest.cursor)} is {slowest.lag_records:,} behind"
        canvas.write(TITLE_WIDTH + PLOT_WIDTH + MARGIN, line - 12, text, GREY)
    return canvas.png()


def _columns(canvas: Canvas, own: Sequence[Hour], first: int, count: int, line: int) -> None:
    most = max((one.records for one in own), default=1)
    most_gone = max(1, max((one.gone for one in own), default=0))
    for one in own:
        at = (one.begins_s - first) // HOUR_S
        left = TITLE_WIDTH + at * PLOT_WIDTH // count
        # Leave a gap between columns if there is room for one.
        width = max(1, TITLE_WIDTH + (at + 1) * PLOT_WIDTH // count - left - (count <= PLOT_WIDTH // 4))
        height = max(1, one.records * UP // most)
        canvas.fill(left, line - height, width, height, GREEN)
        if one.gone > 0:
            canvas.fill(left, line + 1, width, max(1, one.gone * DOWN // most_gone), RED)
    if own:
        canvas.write(TITLE_WIDTH, line - UP - 18, f"{most:,}", BLACK)


def _lag_records(lag: CursorLag) -> int:
    return lag.lag_records


def _short(name: str) -> str:
    return name if len(name) <= TITLE_CHARACTERS else name[: TITLE_CHARACTERS - 2] + ".."
