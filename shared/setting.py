"""What a setting is: a declared field, the text that stands for its value, and the bounds it must keep.

A field of a settings struct is declared as `Annotated[type, Setting(...)] = default`. `declared` reads such a
struct once, and from then on a name, a text and a table row are derived, never written twice. The types are
three, `str`, `int` and `bool`, because the sources are all text and a person has to guess none of it.

The same `parse_value` serves every source that may name a setting, and what `render_value` writes it reads
back.

What it must not know: which settings there are (`shared/config.py`), and where the text came from.
"""

from __future__ import annotations

import re
from typing import Final, get_args

import msgspec

PREFIX: Final = "TOPICS_"

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

Value = str | int | bool

_SUFFIXES: Final = {"": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}

# Twenty digits are more than any bound needs, and keep a text of a megabyte from being computed.
_whole_number = re.compile(r"-?[0-9]{1,20}")
_size = re.compile(r"([0-9]{1,20}) ?(|KiB|MiB|GiB)")


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say about a field besides its type and default. Bounds are inclusive.

    For text the bounds are of its length. The unit `bytes` also allows the suffixes KiB, MiB and GiB.
    """

    help: str
    unit: str = ""
    minimum: int | None = None
    maximum: int | None = None


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


def declared(settings: type[msgspec.Struct]) -> tuple[Declared, ...]:
    """The fields of a settings struct, in the order in which they are written there."""
    found = []
    for field in msgspec.structs.fields(settings):
        kind, setting = get_args(field.type)
        assert kind in (str, int, bool), f"{field.name}: no text stands for a {kind}"
        assert isinstance(setting, Setting)
        assert type(field.default) is kind, f"{field.name}: the default is of another type"
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
        value = _parse_size(text) if field.setting.unit == "bytes" else _parse_whole_number(text)
    else:
        value = text
    broken = refuse_value(field, value)
    if broken is not None:
        raise ValueError(broken)
    return value


def refuse_value(field: Declared, value: Value) -> str | None:
    """The sentence about the bound that a value breaks, or None."""
    if isinstance(value, bool):
        return None
    measured = len(value) if isinstance(value, str) else value
    minimum, maximum = field.setting.minimum, field.setting.maximum
    if (minimum is not None and measured < minimum) or (maximum is not None and measured > maximum):
        return f"{'its length ' if field.kind is str else ''}must be {render_bounds(field)}"
    return None


def render_value(field: Declared, value: Value) -> str:
    """The text of a value, as a person would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and field.setting.unit == "bytes":
        return render_size(value)
    return str(value)


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
    return render_size(bound) if field.setting.unit == "bytes" else str(bound)
