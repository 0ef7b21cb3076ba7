"""What a setting is: a declared field, the text that stands for its value, and the bounds it must keep.

A field of a settings struct is declared as `Annotated[type, Setting(...)] = default`. `declared` reads such a
struct once, and from then on a name, a text and a table row are derived, never written twice. The types are
three, `str`, `int` and `bool`, because most sources are text and a person has to guess none of it.

A duration and a size may be texts with units (`shared/text/quantity.py`). The same
`parse_value` serves every source of text that may name a setting, `accept_value` those that have
types, and what `render_value` writes either reads back. `show_value` is for eyes and logs: a secret is never
in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, get_args

import msgspec

from shared.text.nearest_name import nearest_name
from shared.text.quantity import (
    GIB,
    KIB,
    MIB,
    parse_bytes,
    parse_duration_ms,
    render_bytes,
    render_duration_ms,
)

__all__ = ["GIB", "KIB", "MIB"]

PREFIX: Final = "TOPICS_"

Value = str | int | bool

SECRET_SHOWN: Final = "(set)"

_SIZE_UNITS: Final = ("bytes", "bytes/s")
# The unit of a plain number as `parse_duration_ms` takes it, and its milliseconds.
_DURATION_UNITS: Final = {"ms": ("ms", 1), "seconds": ("s", 1000)}
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}

# Twenty digits are more than any bound needs, and keep a text of a megabyte from being computed.
_whole_number = re.compile(r"-?[0-9]{1,20}")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say about a field besides its type and default. Bounds are inclusive.

    For text the bounds are of its length.
    """

    help: str
    unit: str = ""
    minimum: int | None = None
    maximum: int | None = None
    zero: str = ""
    """What 0 means where it lies outside the bounds and is allowed all the same, such as `off`."""
    choices: tuple[str, ...] = ()
    """All texts that are allowed, where there are few."""
    is_list: bool = False
    """Text of parts with commas between them; a source with types may give them as a list."""
    is_secret: bool = False
    """Never shown, neither in a table nor in what is said about a wrong value."""
    normalise: Callable[[str], str] | None = None
    """Gives the form in which a text is kept; ValueError with a sentence without the text if wrong."""
    advise: Callable[[str], str | None] | None = None
    """A sentence, without the text, about one that is taken and still may not be what was meant."""


class Declared(msgspec.Struct, frozen=True):
    """A field of a settings struct with everything that was declared about it."""

    name: str
    kind: type[str] | type[int] | type[bool]
    default: Value
    setting: Setting

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.name.upper()

    @property
    def is_size(self) -> bool:
        return self.setting.unit in _SIZE_UNITS

    @property
    def is_duration(self) -> bool:
        return self.setting.unit in _DURATION_UNITS

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.name.replace("_", "-")


def declared(settings: type[msgspec.Struct]) -> tuple[Declared, ...]:
    """The fields of a settings struct, in the order in which they are written there."""
    found = []
    for field in msgspec.structs.fields(settings):
        kind, setting = get_args(field.type)
        assert kind in (str, int, bool), f"{field.name}: no text stands for a {kind}"
        assert isinstance(setting, Setting)
        assert type(field.default) is kind, f"{field.name}: the default is of another type"
        assert setting.normalise is None or kind is str, f"{field.name}: only text has another form"
        one = Declared(field.name, kind, field.default, setting)
        assert refuse_value(one, one.default) is None, f"{field.name}: the default breaks its own bounds"
        found.append(one)
    return tuple(found)


def parse_value(field: Declared, text: str) -> Value:
    """The value that a text stands for; ValueError with a sentence about the bound that it breaks.

    >>> size = Declared("file_bytes", int, KIB, Setting(help="", unit="bytes", minimum=1, maximum=GIB))
    >>> parse_value(size, "64 MiB")
    67108864
    >>> parse_value(size, "2GiB")
    Traceback (most recent call last):
    ValueError: must be from 1 to 1 GiB
    """
    value: Value
    if field.kind is bool:
        if text not in _BOOLEANS:
            raise ValueError("must be true, false, 1 or 0")
        value = _BOOLEANS[text]
    elif field.kind is int:
        value = _parse_number(field, text)
    else:
        value = text
    return _within_bounds(field, value)


def accept_value(field: Declared, given: object) -> Value:
    """As `parse_value`, for a value that has a type already; a size and a duration may also be texts.

    >>> accept_value(Declared("port", int, 0, Setting(help="", unit="number")), "4000")
    Traceback (most recent call last):
    ValueError: must be a whole number, without quotes
    """
    if field.kind is bool:
        if not isinstance(given, bool):
            raise ValueError("must be true or false, without quotes")
        return given
    if field.kind is int:
        if (field.is_size or field.is_duration) and isinstance(given, str):
            return parse_value(field, given)
        if isinstance(given, bool) or not isinstance(given, int):
            raise ValueError("must be a whole number, without quotes")
        return _within_bounds(field, given)
    return _within_bounds(field, text_of(field, given))


def text_of(field: Declared, given: object) -> str:
    """The text of a value of a text setting: a list of texts is joined with commas where it may be one.

    >>> keys = Declared("keys", str, "", Setting(help="", is_list=True))
    >>> text_of(keys, ["a", "b"])
    'a,b'
    """
    if isinstance(given, str):
        return given
    if not field.setting.is_list:
        raise ValueError("must be a text in quotes")
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise ValueError("must be a text in quotes, or a list of them")
    for number, one in enumerate(given, 1):
        if "," in one:
            raise ValueError(f"entry {number}: must not contain a comma")
    return ",".join(given)


def refuse_value(field: Declared, value: Value) -> str | None:
    """The sentence about the bound that a value breaks, or None."""
    if isinstance(value, bool):
        return None
    measured = len(value) if isinstance(value, str) else value
    minimum, maximum = field.setting.minimum, field.setting.maximum
    if value == "" and minimum:
        return "must not be empty"
    if field.setting.choices and value not in field.setting.choices:
        nearest = nearest_name(str(value), field.setting.choices)
        guess = f", did you mean {nearest}?" if nearest else ""
        return f"must be one of {', '.join(field.setting.choices)}{guess}"
    if field.setting.zero and value == 0:
        return None
    if (minimum is not None and measured < minimum) or (maximum is not None and measured > maximum):
        return f"{'its length ' if field.kind is str else ''}must be {render_bounds(field)}"
    return None


def render_value(field: Declared, value: Value) -> str:
    """The text of a value, as a person would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _render_number(field, value) if isinstance(value, int) else value


def show_value(field: Declared, value: Value) -> str:
    """The text of a value for a person or a log, with a secret hidden."""
    if field.setting.is_secret:
        return SECRET_SHOWN if value else ""
    return render_value(field, value)


def render_bounds(field: Declared) -> str:
    """The bounds in words; empty when there are none."""
    minimum, maximum = field.setting.minimum, field.setting.maximum
    low = None if minimum is None else _render_number(field, minimum)
    high = None if maximum is None else _render_number(field, maximum)
    if low is not None and high is not None:
        zero = f"0 ({field.setting.zero}) or " if field.setting.zero else ""
        return f"{zero}from {low} to {high}"
    if low is not None:
        return f"at least {low}"
    if high is not None:
        return f"at most {high}"
    return ""


def _within_bounds(field: Declared, value: Value) -> Value:
    broken = refuse_value(field, value)
    if broken is not None:
        raise ValueError(broken)
    if field.setting.normalise is not None and isinstance(value, str):
        return field.setting.normalise(value)
    return value


def _parse_whole_number(text: str) -> int:
    if not _whole_number.fullmatch(text):
        raise ValueError("must be a whole number")
    return int(text)


def _parse_number(field: Declared, text: str) -> int:
    if field.is_size:
        return parse_bytes(text)
    if not field.is_duration:
        return _parse_whole_number(text)
    unit, unit_ms = _DURATION_UNITS[field.setting.unit]
    duration_ms = parse_duration_ms(text, unit)
    if duration_ms % unit_ms:
        raise ValueError(f"must be a whole number of {field.setting.unit}")
    return duration_ms // unit_ms


def _render_number(field: Declared, number: int) -> str:
    if field.is_size:
        return render_bytes(number)
    if field.is_duration:
        return render_duration_ms(number * _DURATION_UNITS[field.setting.unit][1])
    return str(number)
