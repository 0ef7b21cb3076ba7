"""Blocking code as events of a simulation: a fiber runs until it waits, and resumes when an event says so.

The code under test blocks its thread in requests to a store or a catalog, and in pauses between retries. A
fiber runs such code on a thread of its own, but hands control back at each wait: exactly one thread runs at
any moment, so a run is decided by the order of its events alone.

Promises: an exception of the code, also a power cut, is raised by the call of `resume` during which it
happened. A cancelled fiber raises at its wait and at each later one, as a killed process does nothing more. A
thread that blocks without a wait of the simulation is an error after STUCK_SECONDS.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from tests.harness.machine.faults import MachineGoneError, ProcessKilled

STUCK_SECONDS: Final = 30.0

_idle: list[_Carrier] = []
_running: list[Fiber] = []
"""The fiber that runs now, if one does; a fiber that resumes another one is below it."""


class _Carrier:
    """A thread that runs one fiber after the other."""

    def __init__(self) -> None:
        self._job: Callable[[], None] | None = None
        self.wake = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="fiber", daemon=True)
        self._thread.start()

    def start(self, job: Callable[[], None]) -> None:
        self._job = job
        self.wake.release()

    def _run(self) -> None:
        while True:
            self.wake.acquire()
            job = self._job
            assert job is not None
            job()


class Fiber:
    """One call of blocking code."""

    def __init__(self, job: Callable[[], Any], owner: object = None) -> None:
        self._job = job
        self.owner = owner
        self._carrier: _Carrier | None = None
        self._control = threading.Semaphore(0)
        self._outcome: Any = None
        self._error: BaseException | None = None
        self.result: Any = None
        self._has_ended = False
        self.is_cancelled = False

    def has_ended(self) -> bool:
        return self._has_ended

    def resume(self, outcome: Any = None) -> None:
        """Run until the next wait or the end; the wait returns `outcome`, or raises it."""
        assert not self.has_ended()
        self._outcome = outcome
        _running.append(self)
        if self._carrier is None:
            self._carrier = _idle.pop() if _idle else _Carrier()
            self._carrier.start(self._run)
        else:
            self._carrier.wake.release()
        if not self._control.acquire(timeout=STUCK_SECONDS):
            raise AssertionError("a fiber blocks without a wait of the simulation")
        _running.pop()
        if self.has_ended():
            _idle.append(self._carrier)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> Any:
        """Hand control back until `resume`; called by the code of the fiber."""
        assert _running[-1] is self
        carrier = self._carrier
        assert carrier is not None
        if not self.is_cancelled:
            self._control.release()
            carrier.wake.acquire()
        if self.is_cancelled:
            raise ProcessKilled("in a request to another server")
        outcome, self._outcome = self._outcome, None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def cancel(self) -> None:
        """End the fiber at its wait."""
        self.is_cancelled = True
        if self._carrier is None or self.has_ended():
            self._has_ended = True
            return
        with suppress(MachineGoneError):
            self.resume()
        assert self.has_ended(), "the code survived its process"

    def _run(self) -> None:
        try:
            self.result = self._job()
        except BaseException as error:
            self._error = error
        self._has_ended = True
        self._control.release()


def current_fiber() -> Fiber | None:
    return _running[-1] if _running else None
