"""Threads that run until the block around them is left, and are joined then."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Final, Self

JOIN_SECONDS: Final = 60.0


class LiveThreads:
    """A group of threads: subclasses fill `_threads`, and each thread checks `_ending`."""

    def __init__(self) -> None:
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
            assert not thread.is_alive(), "a client thread did not end"
