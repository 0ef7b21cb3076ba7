"""The way out of an answer that does not end.

Whoever has something to say writes it in pieces that stand for themselves, and stops when the stream is
clogged: what is not written yet is not held for anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Stream(Protocol):
    on_ready: Callable[[], None]
    """Called when a clogged stream takes more again."""
    on_lost: Callable[[], None]
    """Called once, when there is nobody to hear any more; not after `close`."""

    @property
    def is_clogged(self) -> bool:
        """What was written has not left: write no more, but for a last word."""
        ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """End it behind what was written."""
        ...


def do_nothing() -> None:
    """What a stream calls as long as nobody said what."""
