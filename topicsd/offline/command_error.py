"""Why a command stops: a sentence for the person who gave it, and an exit code."""

from __future__ import annotations

from typing import Final

FINE: Final = 0
WRONG: Final = 1
"""Something is wrong with the data; what the command says names it."""
NOT_DONE: Final = 2
"""It could not do what it was asked: a wrong argument, no data directory, no permission."""


class CommandError(Exception):
    """Why the command stops, as a sentence for the person who gave it."""

    def __init__(self, sentence: str, exit_code: int = NOT_DONE) -> None:
        super().__init__(sentence)
        self.exit_code = exit_code
