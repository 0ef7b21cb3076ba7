"""The ticks of a schedule: the moments at which its cron expression is due in its time zone.

D1  A minute that a clock change skips is due at the next minute that exists. So all minutes of the gap are
    one tick.
D2  A minute that a clock change repeats is due the first time only.
D3  So ticks never decrease along the selected minutes of local time, and each is one moment of UTC.

All functions are pure: they take `now` and read no clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import takewhile
from typing import Final
from zoneinfo import ZoneInfo

from shared.contract.errors import Refusal, invalid
from shared.text.message import quoted
from topicsd.engine.schedules.cron import Cron, parse_cron

MINUTE_MS: Final = 60_000
ON_TIME_MS: Final = MINUTE_MS
"""A tick that is reached later than this was missed."""
CATCH_UP_MAX: Final = 1000
"""How many missed ticks get a job with `catch_up: "all"`: the newest ones."""
_MINUTE: Final = timedelta(minutes=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMETABLES_KEPT: Final = 4096


class Timetable:
    """A cron expression in a time zone."""

    __slots__ = ("_cron", "_zone")

    def __init__(self, cron: Cron, zone: tzinfo) -> None:
        self._cron = cron
        self._zone = zone

    def ticks_after(self, after_ms: int) -> Iterator[int]:
        """Yield the ticks after a time, in order."""
        start = (_EPOCH + timedelta(milliseconds=after_ms)).astimezone(self._zone).replace(tzinfo=None)
        for minute in self._cron.minutes_from(start):
            tick = _moment(minute, self._zone)
            if tick > after_ms:
                after_ms = tick
                yield tick

    def newest_ticks(self, after_ms: int, now_ms: int, count: int) -> list[int]:
        """Return the last `count` ticks after `after_ms` up to now, without a walk over all before them."""
        span = count * MINUTE_MS
        while True:
            start = max(after_ms, now_ms - span)
            ticks = [*takewhile(lambda tick: tick <= now_ms, self.ticks_after(start))]
            if len(ticks) >= count or start == after_ms:
                return ticks[-count:]
            span *= 2

    def due_ticks(self, catch_up: str, reached_ms: int, now_ms: int) -> list[int]:
        """Return the ticks after `reached_ms` that get a job now, by the catch-up.

        >>> hourly = timetable_of("@hourly", "UTC")
        >>> hour = 3_600_000
        >>> [len(hourly.due_ticks(one, 0, 5 * hour + 70_000)) for one in ("none", "last", "all")]
        [0, 1, 5]
        >>> [len(hourly.due_ticks(one, 0, 5 * hour + 50_000)) for one in ("none", "last", "all")]
        [1, 1, 5]
        """
        ticks = self.newest_ticks(reached_ms, now_ms, CATCH_UP_MAX if catch_up == "all" else 1)
        if catch_up == "none" and ticks and now_ms - ticks[-1] > ON_TIME_MS:
            return []
        return ticks


def _moment(minute: datetime, zone: tzinfo) -> int:
    """Return the time in ms at which a minute of local time is due (D1, D2)."""
    at = minute.replace(tzinfo=zone).astimezone(UTC)
    if at.astimezone(zone).replace(tzinfo=None) != minute:
        # In a gap; the other reading of the minute is before it.
        before = minute.replace(tzinfo=zone, fold=1).astimezone(UTC)
        offset = before.astimezone(zone).utcoffset()
        while at - before > _MINUTE:
            middle = before + (at - before) // _MINUTE // 2 * _MINUTE
            if middle.astimezone(zone).utcoffset() == offset:
                before = middle
            else:
                at = middle
    return (at - _EPOCH) // timedelta(milliseconds=1)


@lru_cache(maxsize=_TIMETABLES_KEPT)
def timetable_of(cron: str, time_zone: str) -> Timetable | Refusal:
    """Return the timetable of an expression, or refuse it or the time zone.

    >>> print(timetable_of("@daily", "Mars/Olympus").message)
    time_zone: must be a name of the IANA time zone database such as Europe/Berlin, got "Mars/Olympus"
    """
    parsed = parse_cron(cron)
    if isinstance(parsed, Refusal):
        return parsed
    if time_zone == "UTC":
        return Timetable(parsed, UTC)
    try:
        return Timetable(parsed, ZoneInfo(time_zone))
    except (LookupError, ValueError, OSError):
        rule = "must be a name of the IANA time zone database such as Europe/Berlin"
        return invalid("time_zone", f"{rule}, got {quoted(time_zone)}")
