"""Retries of the requests of one process to the object store, which end with the process."""

from __future__ import annotations

import threading
from typing import Final

from shared.runtime.clock import Clock
from shared.runtime.retries import Retries

REPEAT_SECONDS: Final = 20.0


class Repeats:
    """Repeats requests of one process, until it ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_ending = threading.Event()

    def __call__(self) -> Retries:
        return Retries(self._clock.monotonic, self._is_ending.wait, REPEAT_SECONDS)

    def end(self) -> None:
        """Fail requests instead of repeating them."""
        self._is_ending.set()
