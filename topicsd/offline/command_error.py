"""The exit codes of the commands, and the error that ends a command with a message."""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_PROBLEM: Final = 1
"""Something is wrong with the data; the output of the command names it."""
EXIT_ERROR: Final = 2
"""The command could not run: a wrong argument, no data directory, no permission."""


class CommandError(Exception):
    """An error that ends the command: a sentence for the user, and an exit code."""

    def __init__(self, sentence: str, exit_code: int = EXIT_ERROR) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
