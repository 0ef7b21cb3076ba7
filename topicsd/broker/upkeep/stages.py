"""Calls of upkeep with the stage that they belong to, for the times in its metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

UpkeepStage = Literal[
    "claim", "lookup", "trim", "read", "merge", "put", "commit", "list", "condemn", "delete"
]
STAGES: Final[tuple[UpkeepStage, ...]] = UpkeepStage.__args__  # type: ignore[attr-defined]


class Staged:
    """A blocking call of one stage."""

    __slots__ = ("call", "stage")

    def __init__(self, stage: UpkeepStage, call: Callable[[], Any]) -> None:
        self.stage = stage
        self.call = call

    def __call__(self) -> Any:
        return self.call()
