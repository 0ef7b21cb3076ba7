from __future__ import annotations

from spark.chart.canvas import GREEN, RED
from spark.chart.stats_chart import PLOT_WIDTH, ROW, TITLE_WIDTH, TOPICS_MAX, UP, stats_chart
from spark.jobs.cursor_lags import CursorLag
from spark.jobs.hour_stats import Hour, TopicSum
from tests.harness.output.png_reader import read_png

NOON = 1_794_996_000


def hour(topic: str, number: int, records: int, gone: int = 0) -> Hour:
    begins = NOON + 3600 * number
    return Hour(topic, begins, records, 10, 0, None, 1, 2, begins, begins, gone, 1.0)


def total(topic: str, records: int) -> TopicSum:
    return TopicSum(topic, records, 10 * records, NOON, NOON, records, 0)


def test_columns_are_as_high_as_the_hours_and_stand_side_by_side() -> None:
    hours = [hour("a", 0, 40), hour("a", 1, 20, gone=5), hour("a", 3, 10)]
    _, _, lines = read_png(stats_chart([total("a", 70)], hours, [CursorLag("a", "billing", 3, 0, 67)]))
    width = PLOT_WIDTH // 4
    heights = [
        sum(line[TITLE_WIDTH + number * width + width // 2] == GREEN for line in lines) for number in range(4)
    ]
    assert heights == [UP, UP // 2, 0, UP // 4]
    (red,) = {line.index(RED) for line in lines if RED in line}
    assert red == TITLE_WIDTH + width


def test_the_largest_topics_come_first_and_there_is_an_end() -> None:
    sums = [total(f"t{number}", number) for number in range(TOPICS_MAX + 5)]
    _, height, _ = read_png(stats_chart(sums, [], []))
    assert height < ROW * (TOPICS_MAX + 2)
    assert stats_chart(sums, [], []) == stats_chart(sums[::-1], [], [])
