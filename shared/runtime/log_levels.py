"""Log levels in text form: `info`, or `info,topicsd.log=debug,router=warning`.

The level of a module applies to it and all modules below it. The longest matching module decides, as the
loggers of the standard library nest. A module of this project must exist; of another one, its top package
must.
"""

from __future__ import annotations

import logging
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from shared.text.nearest_name import nearest_name

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
DEFAULT_LEVEL: Final = logging.INFO

# Names of loggers that are not modules.
_OTHER_LOGGERS: Final = ("topicsd.audit", "topicsd.serve", "topicsd.spark")
_PACKAGES: Final = ("topicsd", "router", "shared", "spark", "loadtest")

_module = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


class Levels(NamedTuple):
    general: int
    by_module: dict[str, int]


def parse_levels(text: str) -> Levels:
    """Parse log levels; raise ValueError with a sentence about an invalid text.

    >>> parse_levels("warning,topicsd.log=debug")
    Levels(general=30, by_module={'topicsd.log': 10})
    >>> parse_levels("loud")
    Traceback (most recent call last):
    ValueError: 'loud' is not a level: debug, info, warning, error
    """
    general: int | None = None
    by_module: dict[str, int] = {}
    for part in text.split(","):
        module, equals, level = (field.strip() for field in part.rpartition("="))
        if level.lower() not in LEVELS:
            raise ValueError(f"{level!r} is not a level: {', '.join(LEVELS)}")
        number = LEVELS[level.lower()]
        if not equals:
            if general is not None:
                raise ValueError("only one level may be without a module")
            general = number
        elif not _module.fullmatch(module):
            raise ValueError(f"{module!r} is not a module name, such as topicsd.log")
        elif module in by_module:
            raise ValueError(f"{module} must not be named twice")
        elif (unknown := _refuse_module(module)) is not None:
            raise ValueError(unknown)
        else:
            by_module[module] = number
    return Levels(DEFAULT_LEVEL if general is None else general, by_module)


def _refuse_module(module: str) -> str | None:
    """Return the message for a module that does not exist, or None.

    >>> _refuse_module("topicsd.logg"), _refuse_module("aiohttp.access")
    ('topicsd.logg: unknown module, did you mean topicsd.log?', None)
    """
    package = module.partition(".")[0]
    if package in _PACKAGES:
        names = _module_names()
        if module in names:
            return None
    else:
        if find_spec(package) is not None:
            return None
        names = _PACKAGES
    nearest = nearest_name(module, names)
    return f"{module}: unknown module" + (
        f", did you mean {nearest}?" if nearest else ", such as topicsd.log"
    )


@cache
def _module_names() -> tuple[str, ...]:
    root = Path(__file__).parents[2]
    paths = [path for package in _PACKAGES for path in (root / package).rglob("*.py")]
    modules = {".".join(path.relative_to(root).with_suffix("").parts) for path in paths}
    return tuple({name.removesuffix(".__init__") for name in modules} | set(_OTHER_LOGGERS))


def check_levels(text: str) -> str:
    """Return the text unchanged; raise ValueError if it is invalid."""
    parse_levels(text)
    return text
