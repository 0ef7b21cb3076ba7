"""What a setting is: a declared field, the text that stands for its value, and the bounds it must keep.

A field of a settings struct is declared as `Annotated[type, Setting(...)] = default`. `declared` reads such a
struct once, and from then on a name, a text and a table row are derived, never written twice. The types are
three, `str`, `int` and `bool`, because most sources are text and a person has to guess none of it.

The same `parse_value` serves every source of text that may name a setting, `accept_value` those that have
types, and what `render_value` writes either reads back. `show_value` is for eyes and logs: a secret is never
in it.

What it must not know: which settings there are (`shared/config.py`), and where the text came from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, get_args

import msgspec

PREFIX: Final = "TOPICS_"

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

Value = str | int | bool

SECRET_SHOWN: Final = "(set)"

_SIZE_UNITS: Final = ("bytes", "bytes/s")
_SUFFIXES: Final = {"": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}

# Twenty digits are more than any bound needs, and keep a text of a megabyte from being computed.
_whole_number = re.compile(r"-?[0-9]{1,20}")
_size = re.compile(r"([0-9]{1,20}) ?(|KiB|MiB|GiB)")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say about a field besides its type and default. Bounds are inclusive.

    For text the bounds are of its length. Units of bytes also allow the suffixes KiB, MiB and GiB.
    """

    help: str
    unit: str = ""
    minimum: int | None = None
    maximum: int | None = None
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
        value = _parse_size(text) if field.is_size else _parse_whole_number(text)
    else:
        value = text
    return _within_bounds(field, value)


def accept_value(field: Declared, given: object) -> Value:
    """As `parse_value`, for a value that has a type already; only a size may also be a text.

    >>> accept_value(Declared("port", int, 0, Setting(help="", unit="number")), "4000")
    Traceback (most recent call last):
    ValueError: must be a whole number, without quotes
    """
    if field.kind is bool:
        if not isinstance(given, bool):
            raise ValueError("must be true or false, without quotes")
        return given
    if field.kind is int:
        if field.is_size and isinstance(given, str):
            return parse_value(field, given)
        if isinstance(given, bool) or not isinstance(given, int):
            raise ValueError("must be a whole number, without quotes")
        return _within_bounds(field, given)
    if not isinstance(given, str):
        raise ValueError("must be a text in quotes")
    return _within_bounds(field, given)


def refuse_value(field: Declared, value: Value) -> str | None:
    """The sentence about the bound that a value breaks, or None."""
    if isinstance(value, bool):
        return None
    measured = len(value) if isinstance(value, str) else value
    minimum, maximum = field.setting.minimum, field.setting.maximum
    if value == "" and minimum:
        return "must not be empty"
    if (minimum is not None and measured < minimum) or (maximum is not None and measured > maximum):
        return f"{'its length ' if field.kind is str else ''}must be {render_bounds(field)}"
    return None


def render_value(field: Declared, value: Value) -> str:
    """The text of a value, as a person would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and field.is_size:
        return render_size(value)
    return str(value)


def show_value(field: Declared, value: Value) -> str:
    """The text of a value for a person or a log, with a secret hidden."""
    if field.setting.is_secret:
        return SECRET_SHOWN if value else ""
    return render_value(field, value)


def render_bounds(field: Declared) -> str:
    """The bounds in words; empty when there are none."""
    minimum, maximum = field.setting.minimum, field.setting.maximum
    low = None if minimum is None else _render_bound(field, minimum)
    high = None if maximum is None else _render_bound(field, maximum)
    if low is not None and high is not None:
        return f"from {low} to {high}"
    if low is not None:
        return f"at least {low}"
    if high is not None:
        return f"at most {high}"
    return ""


def render_size(size: int) -> str:
    """
    >>> render_size(64 * MIB), render_size(1000), render_size(1)
    ('64 MiB', '1000', '1')
    """
    for suffix in ("GiB", "MiB", "KiB"):
        factor = _SUFFIXES[suffix]
        if size and size % factor == 0:
            return f"{size // factor} {suffix}"
    return str(size)


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


def _parse_size(text: str) -> int:
    parts = _size.fullmatch(text)
    if parts is None:
        raise ValueError("must be a whole number of bytes, or of KiB, MiB or GiB with that behind it")
    return int(parts[1]) * _SUFFIXES[parts[2]]


def _render_bound(field: Declared, bound: int) -> str:
    return render_size(bound) if field.is_size else str(bound)
