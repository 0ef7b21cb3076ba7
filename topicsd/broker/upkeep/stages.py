"""Calls of upkeep with the stage that they belong to, for the times in its metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

Stage = Literal["claim", "lookup", "trim", "read", "merge", "put", "commit", "list", "condemn", "delete"]
STAGES: Final[tuple[Stage, ...]] = Stage.__args__  # type: ignore[attr-defined]


class Staged:
    """A blocking call of one stage."""

    __slots__ = ("call", "stage")

    def __init__(self, stage: Stage, call: Callable[[], Any]) -> None:
        self.stage = stage
        self.call = call

    def __call__(self) -> Any:
        return self.call()
