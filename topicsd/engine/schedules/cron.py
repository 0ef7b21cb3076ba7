"""Cron expressions: five fields that select minutes of local time.

The fields are minute, hour, day of month, month and day of week. Each is `*` or a list of numbers, names and
ranges; `*` and ranges may have a step. A Sunday is 0 or 7. As in crontab, a day must match one of both day
fields when neither begins with `*`, and both otherwise.

Own code, as the rules fit on a page, and no library separates them from the time zone, whose rule for clock
changes is our own (`timetable.py`).

    >>> from itertools import islice
    >>> cron = parse_cron("*/20 9-10,17 * * mon-fri")
    >>> [str(minute) for minute in islice(cron.minutes_from(datetime(2026, 5, 1, 10, 30)), 3)]
    ['2026-05-01 10:40:00', '2026-05-01 17:00:00', '2026-05-01 17:20:00']
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from datetime import date, datetime
from typing import Final, NamedTuple

from shared.contract.errors import Refusal, invalid
from shared.text.message import quoted

CRON_CHARACTERS_MAX: Final = 256
# The days of 40 years: 29 February falls on every day of the week within them.
_MONTHS_SEARCHED: Final = 41 * 12

_ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class _Field(NamedTuple):
    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()
    """The names of the numbers from `first` on."""


_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _WEEKDAYS),
)


class Cron(NamedTuple):
    """A parsed expression."""

    minutes: list[int]
    hours: list[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """The days of the week, from 0 for Sunday to 6."""
    is_either_day: bool
    """Whether a day needs to match only one of `days` and `weekdays`."""

    def minutes_from(self, start: datetime) -> Iterator[datetime]:
        """Yield the selected minutes at or after `start`, in order; none when no day matches."""
        for day in self._days_from(start.date()):
            is_first = day == start.date()
            for hour in self.hours:
                if is_first and hour < start.hour:
                    continue
                for minute in self.minutes:
                    if not is_first or hour > start.hour or minute >= start.minute:
                        yield datetime(day.year, day.month, day.day, hour, minute)

    def _days_from(self, start: date) -> Iterator[date]:
        year, month, first = start.year, start.month, start.day
        month_count = 0
        while month_count < _MONTHS_SEARCHED:
            month_count += 1
            if month in self.months:
                for number in range(first, monthrange(year, month)[1] + 1):
                    day = date(year, month, number)
                    if self._has_day(day):
                        month_count = 0
                        yield day
            year, month, first = (year + 1, 1, 1) if month == 12 else (year, month + 1, 1)

    def _has_day(self, day: date) -> bool:
        by_day, by_weekday = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return by_day or by_weekday if self.is_either_day else by_day and by_weekday


def parse_cron(text: str) -> Cron | Refusal:
    """Parse an expression.

    >>> print(parse_cron("0 24 * * *").message)
    cron: hour must be from 0 to 23, got 24
    >>> print(parse_cron("@reboot").message)
    cron: must be five fields or one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, \
@hourly, got "@reboot"
    >>> print(parse_cron("0 0 30 feb *").message)
    cron: selects no day of any year
    """
    if len(text) > CRON_CHARACTERS_MAX:
        rule = f"must be at most {CRON_CHARACTERS_MAX} characters, got {len(text)}"
        return invalid("cron", rule, CRON_CHARACTERS_MAX)
    parts = _ALIASES.get(text.strip().lower(), text).lower().split()
    if len(parts) != len(_FIELDS):
        return invalid("cron", f"must be five fields or one of {', '.join(_ALIASES)}, got {quoted(text)}")
    numbers: list[frozenset[int]] = []
    for field, part in zip(_FIELDS, parts, strict=True):
        try:
            numbers.append(frozenset().union(*(_numbers(field, entry) for entry in part.split(","))))
        except _InvalidFieldError as error:
            return invalid("cron", f"{field.name} {error}")
    minutes, hours, days, months, weekdays = numbers
    is_either_day = not parts[2].startswith("*") and not parts[4].startswith("*")
    weekdays = frozenset(day % 7 for day in weekdays)
    cron = Cron(sorted(minutes), sorted(hours), days, months, weekdays, is_either_day)
    if next(cron.minutes_from(datetime(2000, 1, 1)), None) is None:
        return invalid("cron", "selects no day of any year")
    return cron


class _InvalidFieldError(Exception):
    """The rule that a field breaks."""


def _numbers(field: _Field, entry: str) -> range:
    """Return the numbers that one entry of a list selects."""
    span, slash, step_text = entry.partition("/")
    step = _number(field, step_text, is_step=True) if slash else 1
    first_text, dash, last_text = span.partition("-")
    if span == "*":
        first, last = field.first, field.last
    else:
        first = last = _number(field, first_text)
        if dash:
            last = _number(field, last_text)
            if field.last == 7 and last == 0 < first:
                last = 7
        elif slash:
            raise _InvalidFieldError(f"must have its step after * or a range, got {quoted(entry)}")
    if last < first:
        raise _InvalidFieldError(f"must not have a range that runs backwards, got {quoted(entry)}")
    return range(first, last + 1, step)


def _number(field: _Field, text: str, *, is_step: bool = False) -> int:
    if text in field.names and not is_step:
        return field.first + field.names.index(text)
    # More digits are no valid number, and `int` accepts digits of other scripts.
    if not (text.isascii() and text.isdigit() and len(text) <= 4):
        forms = "numbers, names, ranges and steps" if field.names else "numbers, ranges and steps"
        raise _InvalidFieldError(f"must be * or a list of {forms}, got {quoted(text)}")
    number, first = int(text), 1 if is_step else field.first
    if not first <= number <= field.last:
        noun = "step must be" if is_step else "must be"
        raise _InvalidFieldError(f"{noun} from {first} to {field.last}, got {number}")
    return number
