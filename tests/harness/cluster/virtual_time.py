"""The events of all nodes on one virtual clock, and the trace of what happened.

Promises: events run in the order of their times, then of their creation. An event of a process is dropped
when the process is dead, and waits while it is stopped. The trace has a line for each thing that was noted,
with its time; the same seed gives the same trace, byte for byte. Random decisions are made by `rng` alone:
inside `with world`, the random numbers of the code under test come from the seed too.
"""

from __future__ import annotations

import errno
import hashlib
import heapq
import os
import random
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple
from unittest import mock

from shared.runtime.retries import Retries
from tests.harness.cluster.fibers import Fiber, current_fiber
from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.manual_clock import ManualClock
from topicsd.engine.upkeep.upkeep import RateLimit
from topicsd.store import block_cache


class Event(NamedTuple):
    when_ns: int
    number: int
    process: Process | None
    callback: Callable[..., object]
    args: tuple[Any, ...]


class EventHandle:
    """The interface of asyncio's handles."""

    __slots__ = ("_callback", "_cancelled", "when_ns")

    def __init__(self, callback: Callable[..., object], when_ns: int) -> None:
        self._callback = callback
        self._cancelled = False
        self.when_ns = when_ns

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self.when_ns / 1e9

    def run(self, *args: Any) -> None:
        if not self._cancelled:
            self._callback(*args)


class World:
    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.clock = ManualClock()
        self.trace: list[str] = []
        self.steps = 0
        self.failures: list[AssertionError] = []
        """Failed checks in callbacks whose exceptions the code under test logs and swallows."""
        self._events: list[Event] = []
        self._event_count = 0
        self._patches: list[Any] = []
        self._random_state: Any = None

    # -- time and events -----------------------------------------------------------------------------------

    @property
    def now_ns(self) -> int:
        return self.clock.monotonic_ns()

    def after(
        self, ms: float, callback: Callable[..., object], *args: Any, process: Process | None = None
    ) -> None:
        self.after_ns(round(ms * 1e6), process, callback, *args)

    def after_ns(self, ns: int, process: Process | None, callback: Callable[..., object], *args: Any) -> None:
        self._event_count += 1
        event = Event(self.now_ns + max(0, ns), self._event_count, process, callback, args)
        heapq.heappush(self._events, event)

    def run_until(self, is_done: Callable[[], bool], ms_max: float) -> bool:
        """Run events until `is_done`, for at most a virtual time; return whether it is done."""
        end_ns = self.now_ns + round(ms_max * 1e6)
        while not is_done():
            if not self._events or self._events[0].when_ns > end_ns:
                self.clock.advance_ns(end_ns - self.now_ns)
                return is_done()
            self._run_next()
        return True

    def run_for(self, ms: float) -> None:
        self.run_until(lambda: False, ms)

    def _run_next(self) -> None:
        event = heapq.heappop(self._events)
        self.clock.advance_ns(max(0, event.when_ns - self.now_ns))
        process = event.process
        if process is not None and not process.may_run(event):
            return
        self.steps += 1
        try:
            event.callback(*event.args)
        except MachineGoneError as error:
            if process is None:
                raise
            process.on_gone(error)
        if self.failures:
            raise self.failures[0]

    def checked(self, reply: Callable[..., object]) -> Callable[..., None]:
        """Return the reply with its failed checks kept."""

        def call(*args: Any) -> None:
            try:
                reply(*args)
            except AssertionError as error:
                self.failures.append(error)

        return call

    # -- the trace -----------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now_ns / 1e6:.3f} {text}")

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    # -- random numbers of the code under test ---------------------------------------------------------------

    def __enter__(self) -> World:
        tokens = Random(f"{self.seed} tokens")
        self._random_state = random.getstate()
        random.seed(f"{self.seed} global")
        self._patches = [
            mock.patch.object(secrets, "token_hex", lambda size=32: tokens.randbytes(size).hex()),
            mock.patch.object(secrets, "token_bytes", lambda size=32: tokens.randbytes(size)),
            mock.patch.object(os, "urandom", tokens.randbytes),
            mock.patch.object(RateLimit, "wait", _wait),
            mock.patch.object(block_cache, "threading", _Threading),
        ]
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *error: object) -> None:
        for patch in self._patches:
            patch.stop()
        random.setstate(self._random_state)


class Process:
    """One run of a program: its events, its blocking calls, and its loop."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.is_alive = True
        self.is_stopped = False
        self.resumed_ns = 0
        """When it continued after it was stopped."""
        self.fibers: dict[Fiber, Callable[[Any], object]] = {}
        """The blocking calls that have not returned, with what gets their results."""
        self.on_gone: Callable[[MachineGoneError], object] = _raise
        """Called when an event of the process meets the end of its machine."""
        self._waiting: list[Event] = []

    def may_run(self, event: Event) -> bool:
        if not self.is_alive:
            return False
        if self.is_stopped:
            self._waiting.append(event)
            return False
        return True

    def stop(self) -> None:
        """Stop like SIGSTOP: no event runs, and requests in flight reach their servers."""
        self.is_stopped = True

    def resume(self) -> None:
        """Continue like SIGCONT: all that became due runs now, in its order."""
        self.is_stopped = False
        self.resumed_ns = self.world.now_ns
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self.world.after_ns(0, self, event.callback, *event.args)

    def end(self) -> None:
        """End like SIGKILL."""
        self.is_alive = False
        self._waiting = []
        fibers, self.fibers = self.fibers, {}
        for fiber in fibers:
            if fiber is not current_fiber():
                fiber.cancel()

    # -- blocking calls --------------------------------------------------------------------------------------

    def run_fiber(self, job: Callable[[], Any], on_end: Callable[[Any], object]) -> None:
        """Run blocking code; `on_end` gets its result, or the OSError that it raised."""

        def run() -> Any:
            try:
                return job()
            except OSError as error:
                return error

        fiber = Fiber(run, self)
        self.fibers[fiber] = on_end
        self.resume_fiber(fiber, None)

    def resume_fiber(self, fiber: Fiber, outcome: Any) -> None:
        if fiber.has_ended():
            return
        fiber.resume(outcome)
        if fiber.has_ended() and self.is_alive:
            self.fibers.pop(fiber)(fiber.result)

    def retries(self, seconds: float) -> Retries:
        """Return retries for this process, which wait in virtual time."""
        return Retries(self.world.clock.monotonic, self.sleep, seconds, self.world.rng.random)

    def sleep(self, seconds: float) -> None:
        """Wait in a blocking call."""
        fiber = _waiting_process()[1]
        self.world.after_ns(round(seconds * 1e9), self, self.resume_fiber, fiber, None)
        fiber.wait()


class FiberEvent:
    """The interface of a `threading.Event` that fibers wait for."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[tuple[Process, Fiber]] = []

    def set(self) -> None:
        self._is_set = True
        for process, fiber in self._waiting:
            process.world.after_ns(0, process, process.resume_fiber, fiber, None)

    def wait(self) -> None:
        if not self._is_set:
            process, fiber = _waiting_process()
            self._waiting.append((process, fiber))
            fiber.wait()


class _Threading:
    Lock = threading.Lock
    Event = FiberEvent


def _wait(limit: RateLimit, seconds: float) -> None:
    """Replace the wait of a rate limit, which would block all nodes."""
    if seconds > 0.001:
        _waiting_process()[0].sleep(seconds)
    if limit._stopped.is_set():
        raise OSError(errno.ECANCELED, "the shard is closing")


def _waiting_process() -> tuple[Process, Fiber]:
    fiber = current_fiber()
    assert fiber is not None, "a wait outside a disk thread would block the event loop"
    process = fiber.owner
    assert isinstance(process, Process)
    return process, fiber


def _raise(error: MachineGoneError) -> None:
    raise error


def digest_elsewhere(program: str, seed: str, hash_seed: str) -> str:
    """Return what a program prints of the history of a seed, in a process that hashes text in another way."""
    return subprocess.run(
        [sys.executable, "-c", program, seed],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
