"""The output of a response without an end, such as server-sent events.

A writer writes complete messages and stops while the stream is paused. Unwritten data is not buffered for
any client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Stream(Protocol):
    on_ready: Callable[[], None]
    """Called when a paused stream accepts data again."""
    on_lost: Callable[[], None]
    """Called once when the client disconnects; not called after `close`."""

    @property
    def is_paused(self) -> bool:
        """Return whether written data has not left yet. Only a final message may then be written."""
        ...

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """End the stream after everything written so far is sent."""
        ...


def noop() -> None:
    """Do nothing. The callback of a stream until a callback is set."""
