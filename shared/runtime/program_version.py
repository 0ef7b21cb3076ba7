"""The version of the running program."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def program_version() -> str:
    try:
        return version("topicsd")
    except PackageNotFoundError:
        # Run from a copy of the sources that is not installed.
        return "(not installed)"
