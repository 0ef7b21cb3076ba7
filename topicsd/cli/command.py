"""What a command is, and how it says that it cannot do what it was asked."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final, NamedTuple

EXIT_CODES: Final = (
    "exit code: 0 all is well, 1 something is wrong with the data, 2 it could not be looked at"
)


class Command(NamedTuple):
    name: str
    summary: str
    """One line for the list of commands."""
    description: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Prints to stdout, or raises CommandError; gives the exit code."""
    exit_codes: str = EXIT_CODES
