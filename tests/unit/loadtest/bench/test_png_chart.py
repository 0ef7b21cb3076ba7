from __future__ import annotations

from loadtest.bench.lines import LINES
from loadtest.bench.png_chart import MARGIN, TITLE_WIDTH, WIDTH, Bar, draw
from spark.chart.canvas import GREEN, RED
from tests.harness.output.png_reader import read_png

LETTER_WIDTH = 12


def test_a_chart_is_a_png_with_bars_of_the_right_length() -> None:
    data = draw("heading", [Bar("a", "0.5", 0.5, None, GREEN), Bar("b", "1", 1.0, None, RED)])
    width, _, lines = read_png(data)
    assert width == WIDTH
    lengths = {color: max(line.count(color) for line in lines) for color in (GREEN, RED)}
    assert lengths[GREEN] * 2 == lengths[RED] > 100
    assert next(line for line in lines if GREEN in line).index(GREEN) == TITLE_WIDTH


def test_a_bar_that_is_too_long_stays_in_its_space() -> None:
    _, _, lines = read_png(draw("", [Bar("", "", 50.0, 1.0, GREEN)]))
    assert max(line.count(GREEN) for line in lines) < WIDTH - TITLE_WIDTH


def test_each_line_of_the_benchmark_has_room_for_its_title() -> None:
    assert max(len(line.title) for line in LINES.values()) * LETTER_WIDTH <= TITLE_WIDTH - 2 * MARGIN
