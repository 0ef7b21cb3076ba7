"""What is logged, as a person writes it: `info`, or `info,topicsd.wal=debug,router=warning`.

A module stands for itself and all below it, and the longest that fits decides, which is how the loggers of
the standard library are nested anyway.

Must not know: where lines go and how they look (`shared/log_setup.py`).
"""

from __future__ import annotations

import logging
import re
from typing import Final, NamedTuple

LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
DEFAULT_LEVEL: Final = logging.INFO

_module = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")


class Levels(NamedTuple):
    general: int
    by_module: dict[str, int]


def parse_levels(text: str) -> Levels:
    """ValueError with a sentence when the text is none.

    >>> parse_levels("warning,topicsd.wal=debug")
    Levels(general=30, by_module={'topicsd.wal': 10})
    >>> parse_levels("loud")
    Traceback (most recent call last):
    ValueError: 'loud' is no level: debug, info, warning, error
    """
    general: int | None = None
    by_module: dict[str, int] = {}
    for part in text.split(","):
        module, equals, level = (piece.strip() for piece in part.rpartition("="))
        if level.lower() not in LEVELS:
            raise ValueError(f"{level!r} is no level: {', '.join(LEVELS)}")
        number = LEVELS[level.lower()]
        if not equals:
            if general is not None:
                raise ValueError("only one level can be without a module in front of it")
            general = number
        elif not _module.fullmatch(module):
            raise ValueError(f"{module!r} is no module, such as topicsd.wal")
        elif module in by_module:
            raise ValueError(f"{module} is named twice")
        else:
            by_module[module] = number
    return Levels(DEFAULT_LEVEL if general is None else general, by_module)


def check_levels(text: str) -> str:
    """The text as it is, when it can be parsed."""
    parse_levels(text)
    return text
