"""The description of one command, from which the parser and the help are built."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final, NamedTuple

EXIT_CODES: Final = "exit codes: 0 no problems, 1 problems in the data, 2 the data could not be read"


class Command(NamedTuple):
    """One command of the command line."""

    name: str
    summary: str
    """One line for the list of commands."""
    description: str
    example: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    """Run the command: print to stdout and return the exit code, or raise CommandError."""
    exit_codes: str = EXIT_CODES
