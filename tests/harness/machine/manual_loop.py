"""An event loop and a disk thread that run only when the test asks.

Promises: the loop has the methods of asyncio's loop that the engine uses, in asyncio's order: a callback that
becomes ready during a turn runs in the next turn, and due timers run in the order of their times, then of
their creation. `StepThread` replaces the disk thread: it runs jobs one at a time, in order, when the test
asks, so that every interleaving of loop and thread can be reproduced on one thread.

An exception of a callback or a job (above all a `PowerCut`) propagates from the driver's call, and everything
after it stays queued.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from tests.harness.machine.manual_clock import ManualClock

T = TypeVar("T")

_TURNS_MAX = 100_000


class ManualHandle:
    """A handle with the interface of asyncio's Handle and TimerHandle."""

    __slots__ = ("_args", "_callback", "_cancelled", "when_ns")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...], when_ns: int = 0) -> None:
        self._callback = callback
        self._args = args
        self._cancelled = False
        self.when_ns = when_ns

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self.when_ns / 1e9

    def run(self) -> None:
        if not self._cancelled:
            self._callback(*self._args)


class ManualLoop:
    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._ready: deque[ManualHandle] = deque()
        self._timers: list[tuple[int, int, ManualHandle]] = []
        self._timer_count = 0

    def time(self) -> float:
        return self._clock.monotonic()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> ManualHandle:
        handle = ManualHandle(callback, args)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> ManualHandle:
        return self.call_soon(callback, *args)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> ManualHandle:
        return self._call_at_ns(self._clock.monotonic_ns() + round(seconds * 1e9), callback, args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> ManualHandle:
        return self._call_at_ns(round(when * 1e9), callback, args)

    def _call_at_ns(
        self, when_ns: int, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> ManualHandle:
        handle = ManualHandle(callback, args, when_ns)
        self._timer_count += 1
        heapq.heappush(self._timers, (when_ns, self._timer_count, handle))
        return handle

    def run_turn(self) -> int:
        """Run what is ready now, due timers included; return the number of callbacks."""
        self._take_due()
        count = len(self._ready)
        for _ in range(count):
            self._ready.popleft().run()
        return count

    def run_until_idle(self) -> None:
        """Run turns until nothing is ready. Time does not pass, so timers that are not due stay."""
        for _ in range(_TURNS_MAX):
            if not self.run_turn():
                return
        raise AssertionError(f"the loop was still busy after {_TURNS_MAX} turns in which no time passed")

    def advance(self, ms: float) -> None:
        """Advance time from timer to timer, running each at its time and then what it makes ready."""
        end_ns = self._clock.monotonic_ns() + round(ms * 1e6)
        self.run_until_idle()
        while (when_ns := self.next_timer_ns()) is not None and when_ns <= end_ns:
            self._clock.advance_ns(max(0, when_ns - self._clock.monotonic_ns()))
            self.run_until_idle()
        self._clock.advance_ns(max(0, end_ns - self._clock.monotonic_ns()))

    def next_timer_ns(self) -> int | None:
        """Return when the next timer is due, or None without a timer."""
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    @property
    def ready_count(self) -> int:
        return sum(1 for handle in self._ready if not handle.cancelled())

    @property
    def timer_count(self) -> int:
        return sum(1 for _, _, handle in self._timers if not handle.cancelled())

    def _take_due(self) -> None:
        now_ns = self._clock.monotonic_ns()
        while self._timers and self._timers[0][0] <= now_ns:
            handle = heapq.heappop(self._timers)[2]
            if not handle.cancelled():
                self._ready.append(handle)


class StepThread:
    """A disk thread that runs one job at a time on request."""

    def __init__(self, loop: ManualLoop) -> None:
        self._loop = loop
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], object]]] = deque()
        self._outcomes: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._stopped = False

    @property
    def pending(self) -> int:
        return len(self._jobs)

    def submit(self, job: Callable[[], T], done: Callable[[T | OSError], object]) -> None:
        assert not self._stopped, "the thread is stopped and accepts no job"
        self._jobs.append((job, done))

    def run_one(self) -> bool:
        """Run the oldest job and post its outcome to the loop; return False if there was none."""
        if not self._jobs:
            return False
        job, done = self._jobs.popleft()
        outcome: Any
        try:
            outcome = job()
        except OSError as error:
            outcome = error
        self._outcomes.append((done, outcome))
        self._loop.call_soon_threadsafe(self._deliver)
        return True

    def run_all(self) -> int:
        count = 0
        while self.run_one():
            count += 1
        return count

    def drain(self) -> None:
        """Finish the submitted jobs and deliver their outcomes, like a caller that blocks on them."""
        for _ in range(len(self._jobs)):
            self.run_one()
        self._deliver()

    def _deliver(self) -> None:
        while self._outcomes:
            done, outcome = self._outcomes.popleft()
            done(outcome)

    def stop(self) -> None:
        """Stop like a joined thread: submitted jobs are done, new ones are refused."""
        self._stopped = True
        self.run_all()
