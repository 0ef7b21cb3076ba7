"""The event loop, the clock and the disk threads of one process, as events of the simulation.

Promises: the loop calls back in asyncio's order. A disk thread runs its jobs one after the other, each after
a random time; a job that asks a store or a catalog, or pauses, waits as long as that takes while everything
else continues. A job that is waited for with `drain` blocks the loop of its process, as it does in a server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from tests.harness.cluster.fibers import current_fiber
from tests.harness.cluster.virtual_time import EventHandle, Process

T = TypeVar("T")


class NodeClock:
    """The clock of a machine, whose wall time differs from that of the others."""

    def __init__(self, process: Process, skew_ms: int) -> None:
        self._clock = process.world.clock
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._skew_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()


class NodeLoop:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._blocks = 0
        self._deferred: list[tuple[EventHandle, tuple[Any, ...]]] = []

    def time(self) -> float:
        return self._world.clock.monotonic()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> EventHandle:
        return self._call_at_ns(self._world.now_ns, callback, args)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> EventHandle:
        return self.call_soon(callback, *args)

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> EventHandle:
        return self._call_at_ns(self._world.now_ns + round(seconds * 1e9), callback, args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> EventHandle:
        return self._call_at_ns(round(when * 1e9), callback, args)

    def _call_at_ns(
        self, when_ns: int, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> EventHandle:
        handle = EventHandle(callback, when_ns)
        self._world.after_ns(when_ns - self._world.now_ns, self._process, self._run, handle, args)
        return handle

    def _run(self, handle: EventHandle, args: tuple[Any, ...]) -> None:
        if self._blocks:
            self._deferred.append((handle, args))
        else:
            handle.run(*args)

    def block(self) -> None:
        """Run no callback until `unblock`: one of them waits."""
        self._blocks += 1

    def unblock(self) -> None:
        self._blocks -= 1
        if not self._blocks:
            deferred, self._deferred = self._deferred, []
            for handle, args in deferred:
                self._world.after_ns(0, self._process, self._run, handle, args)


class NodeThread:
    """A disk thread; a job takes up to `ms_max`, sometimes much longer."""

    def __init__(self, process: Process, loop: NodeLoop, ms_max: float) -> None:
        self._process = process
        self._loop = loop
        self._ms_max = ms_max
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], object]]] = deque()
        self._outcomes: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._is_busy = False
        self._is_stopped = False
        self._drains: list[Callable[[], object]] = []

    def submit(self, job: Callable[[], T], done: Callable[[T | OSError], object]) -> None:
        assert not self._is_stopped, "the thread is stopped and accepts no job"
        self._jobs.append((job, done))
        if not self._is_busy:
            self._is_busy = True
            self._begin()

    def _begin(self) -> None:
        rng = self._process.world.rng
        ms = rng.random() * self._ms_max * (100 if rng.random() < 0.01 else 1)
        self._process.world.after(ms, self._run_one, process=self._process)

    def _run_one(self) -> None:
        if not self._jobs:
            # Already done by a `drain` outside of any fiber.
            self._is_busy = False
            return
        job, done = self._jobs.popleft()
        self._process.run_fiber(job, lambda outcome: self._on_end(done, outcome))

    def _on_end(self, done: Callable[[Any], object], outcome: Any) -> None:
        self._outcomes.append((done, outcome))
        self._loop.call_soon_threadsafe(self._deliver)
        if self._jobs:
            self._begin()
            return
        self._is_busy = False
        drains, self._drains = self._drains, []
        for resume in drains:
            resume()

    def _deliver(self) -> None:
        while self._outcomes:
            done, outcome = self._outcomes.popleft()
            done(outcome)

    def drain(self) -> None:
        """Wait for all jobs: while time passes in a fiber, at once otherwise."""
        fiber = current_fiber()
        if fiber is None:
            while self._jobs:
                job, done = self._jobs.popleft()
                outcome: Any
                try:
                    outcome = job()
                except OSError as error:
                    outcome = error
                self._outcomes.append((done, outcome))
        elif self._is_busy:
            process = self._process
            self._loop.block()
            self._drains.append(lambda: process.world.after_ns(0, process, process.resume_fiber, fiber, None))
            fiber.wait()
            self._loop.unblock()
        self._deliver()

    def stop(self) -> None:
        """Stop like a joined thread: submitted jobs are done, new ones are refused."""
        self.drain()
        self._is_stopped = True
