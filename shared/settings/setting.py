"""A setting: a declared field, the text form of its value, and its bounds.

A field of a settings struct is declared as `Annotated[type, Setting(...)] = default`. `declared` reads such a
struct once; names, texts and table rows derive from it and are never written twice. There are only three
types, `str`, `int` and `bool`, because most sources are text and their meaning must be obvious.

Durations and sizes may be texts with units (`shared/text/quantity.py`). `parse_value` serves every source of
text, `accept_value` every source with types, and both accept the output of `render_value`. `show_value` is
for people and logs and never contains a secret.
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

AUTO: Final = -(1 << 63)
"""The number that `auto` stands for, where a setting has it: outside all bounds."""
_AUTO_TEXT: Final = "auto"

_SIZE_UNITS: Final = ("bytes", "bytes/s")
# The unit of a plain number as `parse_duration_ms` expects it, and its milliseconds.
_DURATION_UNITS: Final = {"ms": ("ms", 1), "seconds": ("s", 1000)}
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}

# Twenty digits exceed every bound; the limit avoids computing with a text of a megabyte.
_whole_number = re.compile(r"-?[0-9]{1,20}")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The declaration of a field besides its type and default. Bounds are inclusive.

    The bounds of a text apply to its length.
    """

    help: str
    unit: str = ""
    minimum: int | None = None
    maximum: int | None = None
    zero: str = ""
    """Meaning of 0 where it is allowed outside the bounds, such as `off`."""
    auto: str = ""
    """Meaning of `auto`, with which the server chooses the number."""
    choices: tuple[str, ...] = ()
    """All allowed texts, where there are few."""
    is_list: bool = False
    """Whether the text is a comma-separated list, which a typed source may give as a list."""
    is_secret: bool = False
    """Whether the value is never shown, neither in tables nor in error messages."""
    normalise: Callable[[str], str] | None = None
    """Conversion of a text to its stored form; raises ValueError without the text if invalid."""
    advise: Callable[[str], str | None] | None = None
    """Warning, without the text, about a valid value that may be a mistake; or None."""


class SettingField(msgspec.Struct, frozen=True):
    """A field of a settings struct with its declaration."""

    name: str
    kind: type[str] | type[int] | type[bool]
    default: Value
    setting: Setting

    @property
    def variable(self) -> str:
        """Return the name in the environment."""
        return PREFIX + self.name.upper()

    @property
    def is_size(self) -> bool:
        return self.setting.unit in _SIZE_UNITS

    @property
    def is_duration(self) -> bool:
        return self.setting.unit in _DURATION_UNITS

    @property
    def flag(self) -> str:
        """Return the name on the command line."""
        return "--" + self.name.replace("_", "-")


def declared_fields(settings: type[msgspec.Struct]) -> tuple[SettingField, ...]:
    """Return the fields of a settings struct, in the order of their declaration."""
    fields = []
    for field in msgspec.structs.fields(settings):
        kind, setting = get_args(field.type)
        assert kind in (str, int, bool), f"{field.name}: unsupported type {kind}"
        assert isinstance(setting, Setting)
        assert type(field.default) is kind, f"{field.name}: the default must be of the declared type"
        assert setting.normalise is None or kind is str, f"{field.name}: only a text can be normalised"
        one = SettingField(field.name, kind, field.default, setting)
        assert refuse_value(one, one.default) is None, f"{field.name}: the default must be within the bounds"
        fields.append(one)
    return tuple(fields)


def parse_value(field: SettingField, text: str) -> Value:
    """Parse the text of a value; raise ValueError with a sentence about the violated bound.

    >>> size = SettingField("file_bytes", int, KIB, Setting(help="", unit="bytes", minimum=1, maximum=GIB))
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


def accept_value(field: SettingField, given: object) -> Value:
    """Check a typed value as `parse_value` does; a size or duration may also be a text.

    >>> accept_value(SettingField("port", int, 0, Setting(help="", unit="number")), "4000")
    Traceback (most recent call last):
    ValueError: must be a whole number, without quotes
    """
    if field.kind is bool:
        if not isinstance(given, bool):
            raise ValueError("must be true or false" + _quotes_hint(given))
        return given
    if field.kind is int:
        has_words = field.is_size or field.is_duration or (field.setting.auto and given == _AUTO_TEXT)
        if has_words and isinstance(given, str):
            return parse_value(field, given)
        if isinstance(given, bool) or not isinstance(given, int):
            raise ValueError("must be a whole number" + _quotes_hint(given))
        return _within_bounds(field, given)
    return _within_bounds(field, text_of(field, given))


def _quotes_hint(given: object) -> str:
    return ", without quotes" if isinstance(given, str) else ""


def text_of(field: SettingField, given: object) -> str:
    """Return a text setting's value as text; join a list with commas where lists are allowed.

    >>> keys = SettingField("keys", str, "", Setting(help="", is_list=True))
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


def refuse_value(field: SettingField, value: Value) -> str | None:
    """Return a sentence about the bound that a value violates, or None."""
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
    if (field.setting.zero and value == 0) or (field.setting.auto and value == AUTO):
        return None
    if (minimum is not None and measured < minimum) or (maximum is not None and measured > maximum):
        return f"{'its length ' if field.kind is str else ''}must be {render_bounds(field)}"
    return None


def render_value(field: SettingField, value: Value) -> str:
    """Return the text of a value, as a person would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return _render_number(field, value) if isinstance(value, int) else value


def show_value(field: SettingField, value: Value) -> str:
    """Return the text of a value for a person or a log, with a secret hidden."""
    if field.setting.is_secret:
        return SECRET_SHOWN if value else ""
    return render_value(field, value)


def render_bounds(field: SettingField) -> str:
    """Return the bounds in words; empty when there are none."""
    minimum, maximum = field.setting.minimum, field.setting.maximum
    low = None if minimum is None else _render_number(field, minimum)
    high = None if maximum is None else _render_number(field, maximum)
    if low is not None and high is not None:
        zero = f"0 ({field.setting.zero}) or " if field.setting.zero else ""
        auto = f"{_AUTO_TEXT} ({field.setting.auto}) or " if field.setting.auto else ""
        return f"{auto}{zero}from {low} to {high}"
    if low is not None:
        return f"at least {low}"
    if high is not None:
        return f"at most {high}"
    return ""


def _within_bounds(field: SettingField, value: Value) -> Value:
    problem = refuse_value(field, value)
    if problem is not None:
        raise ValueError(problem)
    if field.setting.normalise is not None and isinstance(value, str):
        return field.setting.normalise(value)
    return value


def _parse_whole_number(text: str) -> int:
    if not _whole_number.fullmatch(text):
        raise ValueError("must be a whole number")
    return int(text)


def _parse_number(field: SettingField, text: str) -> int:
    if field.setting.auto and text == _AUTO_TEXT:
        return AUTO
    if field.is_size:
        return parse_bytes(text)
    if not field.is_duration:
        return _parse_whole_number(text)
    unit, unit_ms = _DURATION_UNITS[field.setting.unit]
    duration_ms = parse_duration_ms(text, unit)
    if duration_ms % unit_ms:
        raise ValueError(f"must be a whole number of {field.setting.unit}")
    return duration_ms // unit_ms


def _render_number(field: SettingField, number: int) -> str:
    if field.setting.auto and number == AUTO:
        return _AUTO_TEXT
    if field.is_size:
        return render_bytes(number)
    if field.is_duration:
        return render_duration_ms(number * _DURATION_UNITS[field.setting.unit][1])
    return str(number)
