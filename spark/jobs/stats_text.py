"""The statistics of topics as tables for a terminal.

>>> hour = Hour("a", 1_794_996_000, 1200, 4096, 2, "red", 1, 1203, 1_794_996_000.0, 0.0, 3, 0.3333)
>>> print("\\n".join(hour_table([hour])))
TOPIC  HOUR (UTC)        RECORDS  RECORDS/S  BYTES  TAGS  TOP TAG  GONE
a      2026-11-18 10:00    1,200      0.333  4 KiB     2  red         3
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from spark.jobs.cursor_lags import CursorLag
from spark.jobs.hour_stats import Hour, TopicSum
from topicsd.offline.table import NOTHING, escape_unprintable, size, table, utc


def stats_text(sums: Sequence[TopicSum], hours: Sequence[Hour], lags: Sequence[CursorLag]) -> str:
    parts = [hour_table(hours), sum_table(sums), lag_table(lags)]
    return "\n\n".join("\n".join(lines) for lines in parts if len(lines) > 1)


def hour_table(hours: Sequence[Hour]) -> list[str]:
    headers = ("TOPIC", "HOUR (UTC)", ">RECORDS", ">RECORDS/S", ">BYTES", ">TAGS", "TOP TAG", ">GONE")
    rows = [
        (
            one.topic,
            hour_name(one.begins_s),
            f"{one.records:,}",
            f"{one.rate:,.3g}" if one.rate < 100 else f"{one.rate:,.0f}",
            size(one.bytes),
            f"{one.tags:,}",
            NOTHING if one.top_tag is None else escape_unprintable(one.top_tag),
            f"{one.gone:,}",
        )
        for one in hours
    ]
    return table(headers, rows, indent=0)


def sum_table(sums: Sequence[TopicSum]) -> list[str]:
    headers = ("TOPIC", ">RECORDS", ">BYTES", ">HEAD", ">GONE", "FIRST", "LAST")
    rows = [
        (
            one.topic,
            f"{one.records:,}",
            size(one.bytes),
            f"{one.head:,}",
            f"{one.gone:,}",
            utc(round(one.first_s * 1000)) if one.records else NOTHING,
            utc(round(one.last_s * 1000)) if one.records else NOTHING,
        )
        for one in sums
    ]
    return table(headers, rows, indent=0)


def lag_table(lags: Sequence[CursorLag]) -> list[str]:
    headers = ("TOPIC", "CURSOR", ">FROM SEQ", ">BEHIND", "SET")
    rows = [
        (one.topic, one.cursor, f"{one.from_seq:,}", f"{one.lag_records:,}", utc(one.set_ts)) for one in lags
    ]
    return table(headers, rows, indent=0)


def hour_name(begins_s: int) -> str:
    return f"{datetime.fromtimestamp(begins_s, UTC):%Y-%m-%d %H:%M}"
