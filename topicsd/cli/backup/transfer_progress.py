"""The progress of a transfer: one line that is replaced on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
from typing import Final

from shared.runtime.clock import Clock
from topicsd.offline.table import size

TERMINAL_SECONDS: Final = 0.2
LINE_SECONDS: Final = 10.0


RETRY_LINE_SECONDS: Final = 5.0


class RetryLines:
    """Lines about a store that does not answer, for all threads of a command; it prints to stderr."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._printed: float | None = None

    def show(self, line: str) -> None:
        """Print a line at once, and further ones a few seconds apart."""
        with self._lock:
            now = self._clock.monotonic()
            if self._printed is not None and now - self._printed < RETRY_LINE_SECONDS:
                return
            self._printed = now
            start = "\r\x1b[K" if sys.stderr.isatty() else ""
            print(f"{start}{line}", file=sys.stderr, flush=True)


class TransferProgress:
    """A counter of bytes, for all threads of a command; it prints to stderr."""

    def __init__(self, verb: str, clock: Clock, total: int = 0) -> None:
        """Count bytes of `total`; 0 is an unknown number."""
        self._verb = verb
        self._clock = clock
        self._total = total
        self._is_terminal = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._done = 0
        self._started = self._printed = clock.monotonic()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = self._clock.monotonic()
            if now - self._printed < (TERMINAL_SECONDS if self._is_terminal else LINE_SECONDS):
                return
            self._printed = now
            rate = f"{size(int(self._done / (now - self._started)))}/s"
            amount = f"{size(self._done)} of {size(self._total)}" if self._total else size(self._done)
            line = f"{self._verb}: {amount}, {rate}"
            if self._is_terminal:
                print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
            else:
                print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
