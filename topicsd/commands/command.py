"""What a command is, and how it says that it cannot do what it was asked.

Must not know: which commands there are.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final, NamedTuple

FINE: Final = 0
WRONG: Final = 1
"""Something is wrong with the data; what the command says names it."""
NOT_DONE: Final = 2
"""It could not do what it was asked: a wrong argument, no data directory, no permission."""

EXIT_CODES: Final = (
    "exit code: 0 all is well, 1 something is wrong with the data, 2 it could not be looked at"
)


class CommandError(Exception):
    """Why the command stops, as a sentence for the person who gave it."""

    def __init__(self, sentence: str, exit_code: int = NOT_DONE) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code


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
