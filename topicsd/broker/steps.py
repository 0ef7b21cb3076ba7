"""Steps: work that waits for threads, timers and other work, as a generator that reads from top to bottom.

A step yields a *wait*: a function that starts something and calls its argument once, at once or later, with
the result. An exception as the result is raised at the yield. All code between two yields runs on the event
loop, and only there is the state of the broker touched.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, TypeVar

from shared.runtime.disk_thread import DiskThread, Loop

T = TypeVar("T")
Resume = Callable[[Any], None]
Wait = Callable[[Resume], object]
Steps = Generator[Wait, Any, T]
BlockingSteps = Generator[Callable[[], Any], Any, T]
"""Yields blocking calls, and gets their results; an OSError is raised at the yield."""

logger = logging.getLogger("topicsd.broker")


class _StepsRun:
    __slots__ = ("_done", "_is_in_step", "_outcome", "_steps")

    def __init__(self, steps: Steps[Any], done: Callable[[Any], object]) -> None:
        self._steps = steps
        self._done = done
        self._is_in_step = False
        self._outcome: deque[Any] = deque()

    def resume(self, outcome: Any) -> None:
        self._outcome.append(outcome)
        if self._is_in_step:
            # The wait ended before `start` returned: the loop below continues, instead of a deeper call.
            return
        self._is_in_step = True
        try:
            while self._outcome:
                outcome = self._outcome.popleft()
                try:
                    is_error = isinstance(outcome, Exception)
                    wait = self._steps.throw(outcome) if is_error else self._steps.send(outcome)
                except StopIteration as end:
                    self._done(end.value)
                    return
                except OSError as error:
                    self._done(error)
                    return
                except Exception as error:
                    # A bug: report a failure to those that wait, and the bug to the event loop.
                    self._done(OSError(errno.EIO, f"unexpected error: {error!r}"))
                    raise
                wait(self.resume)
        finally:
            self._is_in_step = False


def run(steps: Steps[T], done: Callable[[T | OSError], object]) -> None:
    """Run steps; `done` gets what they return, or the OSError that they raise."""
    _StepsRun(steps, done).resume(None)


def call_reply(reply: Callable[[T], object], answer: T) -> None:
    """Call `reply`; log and swallow its exceptions, since other replies follow."""
    try:
        reply(answer)
    except Exception:
        logger.exception("reply: failed: unexpected error")


def sleep(loop: Loop, seconds: float) -> Wait:
    return lambda resume: loop.call_later(seconds, resume, None)


def together(waits: Sequence[Wait]) -> Wait:
    """Wait for all; the result is the list of results, of which some may be exceptions."""

    def start(resume: Resume) -> None:
        results: list[Any] = [None] * len(waits)
        left = len(waits)

        def end(number: int, outcome: Any) -> None:
            nonlocal left
            results[number] = outcome
            left -= 1
            if not left:
                resume(results)

        for number, wait in enumerate(waits):
            wait(partial(end, number))
        if not waits:
            resume(results)

    return start


class Pool:
    """Threads for one kind of blocking calls. Jobs begin in the order of their submission."""

    def __init__(self, threads: Sequence[DiskThread]) -> None:
        self._idle = list(threads)
        self._threads = tuple(threads)
        self._jobs: deque[tuple[Callable[[], Any], Resume]] = deque()

    @property
    def waiting(self) -> int:
        """The number of jobs that have not begun."""
        return len(self._jobs)

    def call(self, job: Callable[[], Any]) -> Wait:
        """Wait for a blocking call; its OSError is raised at the yield."""
        return partial(self._submit, job)

    def _submit(self, job: Callable[[], Any], resume: Resume) -> None:
        self._jobs.append((job, resume))
        self._begin()

    def _begin(self) -> None:
        while self._jobs and self._idle:
            thread = self._idle.pop()
            job, resume = self._jobs.popleft()
            thread.submit(job, partial(self._end, thread, resume))

    def _end(self, thread: DiskThread, resume: Resume, outcome: Any) -> None:
        self._idle.append(thread)
        self._begin()
        resume(outcome)

    def stop(self) -> None:
        for thread in self._threads:
            thread.stop()


def on_pool(pool: Pool, job: BlockingSteps[T]) -> Steps[T]:
    """Run steps that yield blocking calls on the threads of a pool."""
    result: Any = None
    while True:
        try:
            call = job.throw(result) if isinstance(result, OSError) else job.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            result = yield pool.call(call)
        except OSError as error:
            result = error
