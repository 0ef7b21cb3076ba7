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
        self._said = 0
        self._shown = sys.stderr.isatty()

    def begin(self, total_bytes: int) -> None:
        self._total = total_bytes

    def read(self, count: int) -> None:
        self._done += count
        if self._shown and self._done - self._said >= STEP_BYTES:
            self._said = self._done
            told = f"{size(min(self._done, self._total))} of {size(self._total)}"
            print(f"\r\x1b[K{self.label}: {told}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._said:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
