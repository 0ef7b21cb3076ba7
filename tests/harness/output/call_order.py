"""A recorder of the project functions that an action enters, in order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

PROJECT = Path(__file__).parents[3]

Call = tuple[str, str]
"""A file of the project, and a function in it."""


def calls_of(action: Callable[[], object]) -> list[Call]:
    """Run an action and return the calls that it began on this thread, in order."""
    calls: list[Call] = []
    root = f"{PROJECT}/"

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            calls.append((code.co_filename[len(root) :], code.co_name))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(before)
    return calls


def first_missing(expected: Sequence[Call], calls: Sequence[Call]) -> Call | None:
    """Return the first expected call that does not follow the one before it.

    >>> first_missing([("a.py", "f"), ("b.py", "g")], [("a.py", "f"), ("a.py", "h"), ("b.py", "g")])
    >>> first_missing([("b.py", "g"), ("a.py", "f")], [("a.py", "f"), ("b.py", "g")])
    ('a.py', 'f')
    """
    remaining = iter(calls)
    return next((call for call in expected if call not in remaining), None)
