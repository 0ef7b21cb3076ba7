"""Long work in pieces, so that it holds neither the loop nor a thread: checkpoints and what keeps segments.

A job is a generator that runs on the loop and yields what it waits for:

    None             the next turn of the loop
    a float          so many seconds
    SYNCED           until everything that has joined the log is on the disk and published
    a callable       its outcome, from the disk thread; an error is raised where it was asked for

So a job reads from top to bottom, touches the engine's state only between two yields, and every step of it
can be played in a test. Computing stays on the loop, in pieces of well under a millisecond: on a thread it
would hold the interpreter for longer than that, again and again. The thread only waits for the disk.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator
from typing import Any, Final, Protocol, TypeVar

from shared.contract.errors import STORAGE_FULL, Refusal
from shared.runtime.disk_thread import DiskThread, Loop
from topicsd.log.batch import Entry


class _Synced:
    pass


SYNCED: Final = _Synced()

Step = Callable[[], Any] | _Synced | float | None
T = TypeVar("T")
Job = Generator[Step, Any, T]


class Log(Protocol):
    """What a job may wait for, as `log/group_commit.py` has it."""

    failed: Refusal | None

    def when_synced(self, entry: Entry) -> None: ...

    def settle(self) -> None: ...


class Background:
    def __init__(self, loop: Loop, thread: DiskThread, log: Log) -> None:
        self._loop = loop
        self._thread = thread
        self._log = log
        self._running: set[_Running] = set()
        self._is_stopped = False

    def start(self, job: Job[T], done: Callable[[T | Exception], None]) -> None:
        """Run a job beside what else the loop does; `done` gets its outcome. None is begun after a `stop`: a
        timer may come late, on files that are closed."""
        if self._is_stopped:
            return
        running = _Running(self, job, done)
        self._running.add(running)
        self._loop.call_soon(running.go_on, None)

    def run_now(self, job: Job[T]) -> T:
        """Run a job to its end; holds the loop."""
        answer: Any = None
        failure: OSError | None = None
        try:
            while True:
                step = job.send(answer) if failure is None else job.throw(failure)
                answer, failure = None, None
                if step is SYNCED:
                    self._log.settle()
                    if self._log.failed is not None:
                        failure = _log_failed(self._log.failed)
                elif callable(step):
                    try:
                        answer = step()
                    except OSError as error:
                        failure = error
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def stop(self) -> None:
        """Jobs go no further; what the thread has begun it ends."""
        self._is_stopped = True
        running, self._running = self._running, set()
        for one in running:
            # First: who goes on with what the thread gives would have it at work again, on files that close.
            one.is_over = True
        self._thread.drain()
        for one in running:
            one.close()


class _Running:
    """One job, between two of its steps. It takes no further one when it `is_over`."""

    ordinal = 0

    def __init__(self, background: Background, job: Job[Any], done: Callable[[Any], None]) -> None:
        self._background = background
        self._job = job
        self._done = done
        self.is_over = False

    def go_on(self, outcome: Any) -> None:
        if self.is_over:
            return
        try:
            step = self._job.throw(outcome) if isinstance(outcome, Exception) else self._job.send(outcome)
        except StopIteration as end:
            self._end(end.value)
        except Exception as error:
            self._end(error)
        else:
            background = self._background
            if step is None:
                background._loop.call_soon(self.go_on, None)
            elif isinstance(step, float):
                background._loop.call_later(step, self.go_on, None)
            elif step is SYNCED:
                background._log.when_synced(self)
            else:
                assert callable(step)
                background._thread.submit(step, self.go_on)

    def _end(self, outcome: Any) -> None:
        self.is_over = True
        self._background._running.discard(self)
        self._done(outcome)

    def close(self) -> None:
        self._job.close()

    # An entry of the log, while it waits for a sync.

    def publish(self) -> None:
        # In a turn of its own: what is published with it comes first.
        self._background._loop.call_soon(self.go_on, None)

    def undo(self) -> None:
        pass

    def refuse(self, refusal: Refusal) -> None:
        self._background._loop.call_soon(self.go_on, _log_failed(refusal))


def _log_failed(refusal: Refusal) -> OSError:
    number = errno.ENOSPC if refusal.code == STORAGE_FULL else errno.EIO
    return OSError(number, f"the log takes nothing: {refusal.message}")
