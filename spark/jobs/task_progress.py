"""The progress of a job on stderr: a line for each step, and a count of finished tasks.

On a terminal the number of tasks is one line that changes; elsewhere a line is written every 10 s, so that a
log shows activity without being filled by it.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, TextIO

from shared.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_SECONDS = 0.5
LINE_SECONDS = 10.0


class TaskProgress:
    """A progress display that runs from entry to exit; `report` reports a step."""

    def __init__(
        self, session: SparkSession, job: str, out: TextIO | None = None, clock: Clock | None = None
    ) -> None:
        self._tracker = session.sparkContext.statusTracker()
        self._job = job
        self._out = sys.stderr if out is None else out
        self._clock = SystemClock() if clock is None else clock
        self._is_terminal = self._out.isatty()
        self._started_at = self._line_at = self._clock.monotonic()
        self._line = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._lock = threading.Lock()

    def __enter__(self) -> TaskProgress:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with self._lock:
            self._clear()

    def report(self, sentence: str) -> None:
        with self._lock:
            self._clear()
            print(f"{self._job}: {sentence}", file=self._out, flush=True)

    def _watch(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            stages = [self._tracker.getStageInfo(stage) for stage in self._tracker.getActiveStageIds()]
            done = sum(one.numCompletedTasks for one in stages if one is not None)
            total = sum(one.numTasks for one in stages if one is not None)
            with self._lock:
                self.show(done, total)

    def show(self, done: int, total: int) -> None:
        if not total:
            return
        now = self._clock.monotonic()
        line = f"{self._job}: {done} of {total} tasks of this step, {now - self._started_at:.0f} s so far"
        if self._is_terminal:
            print(f"\r\x1b[K{line}", end="", file=self._out, flush=True)
            self._line = line
        elif now - self._line_at >= LINE_SECONDS:
            print(line, file=self._out, flush=True)
            self._line_at = now

    def _clear(self) -> None:
        if self._line:
            print("\r\x1b[K", end="", file=self._out, flush=True)
            self._line = ""
