"""The progress of a long read, shown only on a terminal."""

from __future__ import annotations

import sys

from topicsd.offline.table import size

STEP_BYTES = 64 << 20


class Progress:
    """A counter of bytes read, which prints every `STEP_BYTES`.

    Bytes that are read twice count twice, so the total is reached early.
    """

    def __init__(self) -> None:
        self.label = ""
        self._total = 0
        self._done = 0
        self._printed_at = 0
        self._is_terminal = sys.stderr.isatty()

    def begin(self, total_bytes: int) -> None:
        self._total = total_bytes

    def read(self, count: int) -> None:
        self._done += count
        if self._is_terminal and self._done - self._printed_at >= STEP_BYTES:
            self._printed_at = self._done
            amount = f"{size(min(self._done, self._total))} of {size(self._total)}"
            print(f"\r\x1b[K{self.label}: {amount}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._printed_at:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
