"""Cron expressions and their ticks: which minutes they select, also where clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from random import Random

import pytest

from shared.contract.errors import Refusal
from topicsd.engine.schedules.cron import parse_cron
from topicsd.engine.schedules.timetable import CATCH_UP_MAX, MINUTE_MS, Timetable, timetable_of

NOW_MS = 1_790_000_000_000
YEAR_LATER_MS = NOW_MS + 366 * 86_400_000


def timetable(cron: str, time_zone: str = "UTC") -> Timetable:
    table = timetable_of(cron, time_zone)
    assert isinstance(table, Timetable)
    return table


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def ticks(cron: str, time_zone: str, after: str, count: int) -> list[str]:
    first = islice(timetable(cron, time_zone).ticks_after(ms(after)), count)
    return [datetime.fromtimestamp(tick / 1000, UTC).strftime("%m-%d %H:%M") for tick in first]


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("* * * * *", ["07-15 10:31", "07-15 10:32"]),
        ("*/15 * * * *", ["07-15 10:45", "07-15 11:00"]),
        ("10-20/5,40 10 * * *", ["07-15 10:40", "07-16 10:10"]),
        ("0 9 * * MON-fri", ["07-16 09:00", "07-17 09:00"]),
        ("0 9 * * fri-sun", ["07-17 09:00", "07-18 09:00"]),
        ("0 9 * * 7", ["07-19 09:00", "07-26 09:00"]),
        ("0 0 1 jan,Aug *", ["08-01 00:00", "01-01 00:00"]),
        ("0 0 31 * *", ["07-31 00:00", "08-31 00:00"]),
        ("0 0 29 2 *", ["02-29 00:00", "02-29 00:00"]),
        ("0 0 13 * fri", ["07-17 00:00", "07-24 00:00"]),
        ("0 0 */13 * fri", ["08-14 00:00", "11-27 00:00"]),
        ("@hourly", ["07-15 11:00", "07-15 12:00"]),
        ("@Weekly", ["07-19 00:00", "07-26 00:00"]),
        (" @daily ", ["07-16 00:00", "07-17 00:00"]),
    ],
)
def test_an_expression_selects_minutes(cron: str, expected: list[str]) -> None:
    assert ticks(cron, "UTC", "2026-07-15 10:30", 2) == expected


@pytest.mark.parametrize(
    ("cron", "message"),
    [
        (
            "",
            "must be five fields or one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, "
            '@hourly, got ""',
        ),
        ("* * * *", "must be five fields or one of"),
        ("60 * * * *", "minute must be from 0 to 59, got 60"),
        ("* * 0 * *", "day of month must be from 1 to 31, got 0"),
        ("* * * 13 *", "month must be from 1 to 12, got 13"),
        ("* * * * 8", "day of week must be from 0 to 7, got 8"),
        ("*/0 * * * *", "minute step must be from 1 to 59, got 0"),
        ("5/10 * * * *", 'minute must have its step after * or a range, got "5/10"'),
        ("30-10 * * * *", 'minute must not have a range that runs backwards, got "30-10"'),
        ("1,,2 * * * *", 'minute must be * or a list of numbers, ranges and steps, got ""'),
        ("* * * mon *", 'month must be * or a list of numbers, names, ranges and steps, got "mon"'),
        ("-1 * * * *", "minute must be * or a list of"),
        ("1- * * * *", "minute must be * or a list of"),
        ("٣ * * * *", "minute must be * or a list of"),
        ("99999999999999999999 * * * *", "minute must be * or a list of"),
        ("*/mon * * * *", "minute must be * or a list of"),
        ("0 0 31 4,6 *", "selects no day of any year"),
        ("* " * 200, "must be at most 256 characters, got 400"),
    ],
)
def test_a_wrong_expression_is_refused_with_its_field(cron: str, message: str) -> None:
    refusal = parse_cron(cron)
    assert isinstance(refusal, Refusal)
    assert refusal.message.startswith(f"cron: {message}")


@pytest.mark.parametrize(
    "time_zone", ["", "Mars/Olympus", "../../etc/passwd", "/etc/localtime", "Europe", "a\0b"]
)
def test_an_unknown_time_zone_is_refused(time_zone: str) -> None:
    refusal = timetable_of("@daily", time_zone)
    assert isinstance(refusal, Refusal)
    assert refusal.message.startswith("time_zone: must be a name of the IANA time zone database")


@pytest.mark.parametrize(
    ("cron", "time_zone", "after", "expected"),
    [
        # 2026-03-29: clocks in Berlin skip from 02:00 to 03:00, which is 01:00 UTC.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28 12:00", ["03-29 01:00", "03-30 00:30"]),
        (
            "*/30 2,3 * * *",
            "Europe/Berlin",
            "2026-03-28 12:00",
            ["03-29 01:00", "03-29 01:30", "03-30 00:00"],
        ),
        # 2026-10-25: they go back from 03:00 to 02:00, at 01:00 UTC; the first 02:30 is at 00:30 UTC.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24 12:00", ["10-25 00:30", "10-26 01:30"]),
        ("0 * * * *", "Europe/Berlin", "2026-10-24 23:30", ["10-25 00:00", "10-25 02:00"]),
        # 2026-10-04: clocks on Lord Howe skip half an hour at 02:00, which is 15:30 UTC of the day before.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-02 20:00", ["10-03 15:30", "10-04 15:15"]),
        # 2011-12-30 did not exist in Samoa.
        ("0 12 30 * *", "Pacific/Apia", "2011-12-01 00:00", ["12-30 10:00", "01-29 22:00"]),
    ],
)
def test_skipped_minutes_are_one_tick_and_repeated_ones_come_once(
    cron: str, time_zone: str, after: str, expected: list[str]
) -> None:
    assert ticks(cron, time_zone, after, len(expected)) == expected


@pytest.mark.parametrize("time_zone", ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
def test_ticks_are_the_same_from_wherever_they_are_asked(time_zone: str) -> None:
    """Over a year with all its clock changes: each tick follows from the one before, and from any time."""
    random = Random(7)
    for cron in ("*/20 * * * *", "15,45 1-3 * * *", "0 0 * * sun"):
        table = timetable(cron, time_zone)
        every = [*takewhile(lambda tick: tick <= YEAR_LATER_MS, table.ticks_after(NOW_MS))]
        assert every == sorted(set(every))
        assert all(tick % MINUTE_MS == 0 for tick in every)
        for _ in range(200):
            at = random.randrange(NOW_MS, every[-1])
            assert next(table.ticks_after(at)) == next(tick for tick in every if tick > at)


@pytest.mark.parametrize("cron", ["* * * * *", "*/7 3 * * *", "0 0 1 1 *", "* * 1 1 *"])
@pytest.mark.parametrize("days", [0, 1, 400])
def test_the_newest_ticks_are_the_last_of_all(cron: str, days: int) -> None:
    table = timetable(cron, "Europe/Berlin")
    after_ms = NOW_MS - int(timedelta(days=days) / timedelta(milliseconds=1))
    every = [*takewhile(lambda tick: tick <= NOW_MS, table.ticks_after(after_ms))]
    for count in (1, 10, CATCH_UP_MAX):
        assert table.newest_ticks(after_ms, NOW_MS, count) == every[-count:]
