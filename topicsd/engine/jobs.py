"""Background jobs: long work in short steps that never block the loop.

Checkpoints, upkeep and transfers run as jobs, and so do the creation and opening of watches and position
lookups.

A job is a generator that runs on the loop and yields before each wait:

    None             wait for the next turn of the loop
    a float          wait for this number of seconds
    SYNCED           wait until everything that has joined the log is on the disk and published
    a callable       run it on the disk thread and send its result back; an error is raised at the yield
    an `Operation`   start it, and send back what its reply receives (`operation`, `together`)

A job therefore reads from top to bottom, touches the engine's state only between two yields, and a test can
run it step by step. Computation stays on the loop, in steps of well under a millisecond: on a thread it would
repeatedly hold the interpreter for longer than that. The thread only waits for the disk.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from shared.contract.errors import STORAGE_FULL, Refusal
from shared.runtime.disk_thread import DiskThread, Loop
from topicsd.engine.pending import PendingFrame
from topicsd.log.batch import CommitEntry


class _Synced:
    pass


SYNCED: Final = _Synced()

T = TypeVar("T")
Start = Callable[[Callable[[T], object]], object]
"""Starts an operation, and calls its argument once with the outcome, at once or later."""


class Operation(NamedTuple, Generic[T]):
    """The wait for an operation that ends by calling a reply."""

    start: Start[T]


JobWait = Callable[[], Any] | Operation[Any] | _Synced | float | None
BackgroundJob = Generator[JobWait, Any, T]


def operation(start: Start[T]) -> BackgroundJob[T]:
    """Start an operation and return what its reply receives."""
    answer: T = yield Operation(start)
    return answer


def together(starts: Sequence[Start[T]]) -> BackgroundJob[list[T]]:
    """Start all operations and return their answers, in the order of `starts`."""
    if not starts:
        return []
    answers: dict[int, T] = {}

    def start_all(reply: Callable[[None], object]) -> None:
        def answered(number: int, answer: T) -> None:
            answers[number] = answer
            if len(answers) == len(starts):
                reply(None)

        for number, start in enumerate(starts):
            start(partial(answered, number))

    yield Operation(start_all)
    for answer in answers.values():
        if isinstance(answer, Exception):
            raise answer
    return [answers[number] for number in range(len(starts))]


def run_blocking(job: BackgroundJob[T]) -> T:
    """Run a job that waits only for the disk to its end, without an event loop or a log."""
    result: Any = None
    try:
        while True:
            step = job.send(result)
            assert step is None or callable(step)
            result = None if step is None else step()
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class Backlog(Generic[T]):
    """Values that wait for a job, which takes one at a time: `operation(backlog.take)`."""

    def __init__(self) -> None:
        self._values: dict[T, None] = {}
        """The waiting values, each once, oldest first."""
        self._reply: Callable[[T], object] | None = None

    def add(self, value: T) -> None:
        self._values[value] = None
        self._serve()

    def take(self, reply: Callable[[T], object]) -> None:
        """Pass the oldest value to `reply`, now or when there is one."""
        assert self._reply is None, "only one job takes values"
        self._reply = reply
        self._serve()

    def _serve(self) -> None:
        if self._values and self._reply is not None:
            value = next(iter(self._values))
            del self._values[value]
            reply, self._reply = self._reply, None
            reply(value)


class Log(Protocol):
    """The part of the log that jobs use (`log/group_commit.py`)."""

    failed: Refusal | None

    def publish_after_sync(self, entry: CommitEntry) -> None: ...

    def flush(self) -> None: ...


class Background:
    """The runner of jobs on one loop and one disk thread."""

    def __init__(self, loop: Loop, thread: DiskThread, log: Log) -> None:
        self._loop = loop
        self._thread = thread
        self._log = log
        self._running: set[_Running] = set()
        self._is_stopped = False

    def start(self, job: BackgroundJob[T], on_end: Callable[[T | Exception], object]) -> None:
        """Run a job concurrently with the other work of the loop; `on_end` gets its outcome.

        After `stop` this does nothing: a late timer must not start a job on closed files.
        """
        if not self._is_stopped:
            self._loop.call_soon(self._add(job, on_end).resume, None)

    def start_now(self, job: BackgroundJob[T], on_end: Callable[[T | Exception], object]) -> None:
        """Start a job like `start`, but run its first step before this returns.

        For requests: the state that admitted a request cannot change before the job's own checks.
        """
        if not self._is_stopped:
            self._add(job, on_end).resume(None)

    def _add(self, job: BackgroundJob[T], on_end: Callable[[T | Exception], object]) -> _Running:
        running = _Running(self._loop, self._thread, self._log, job, on_end, self._running.discard)
        self._running.add(running)
        return running

    def run_now(self, job: BackgroundJob[T]) -> T:
        """Run a job to its end; blocks the loop. The job must not wait for an `Operation`."""
        answer: Any = None
        failure: OSError | None = None
        try:
            while True:
                step = job.send(answer) if failure is None else job.throw(failure)
                assert not isinstance(step, Operation), "its reply needs the loop, which is blocked here"
                answer, failure = None, None
                if step is SYNCED:
                    self._log.flush()
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
        """Stop all jobs, and wait for the calls that the disk thread already has."""
        self._is_stopped = True
        running = list(self._running)
        self._running.clear()
        for one in running:
            # Before the drain: a job that resumed with the thread's result would submit more work on files
            # that are about to close.
            one.is_over = True
        self._thread.drain()
        for one in running:
            one.close()


class _Running:
    """A started job; it runs no further step once `is_over` is set."""

    def __init__(
        self,
        loop: Loop,
        thread: DiskThread,
        log: Log,
        job: BackgroundJob[Any],
        on_end: Callable[[Any], object],
        forget: Callable[[_Running], object],
    ) -> None:
        """Prepare a job; at its end, `forget` is called before `on_end`."""
        self._loop = loop
        self._thread = thread
        self._log = log
        self._job = job
        self._on_end = on_end
        self._forget = forget
        self.is_over = False
        self._is_stepping = False
        self._answers: list[Any] = []
        """The answer of an operation that replied before its start returned."""

    def resume(self, outcome: Any) -> None:
        if self._is_stepping:
            self._answers.append(outcome)
            return
        self._is_stepping = True
        try:
            self._step(outcome)
            while self._answers:
                self._step(self._answers.pop())
        finally:
            self._is_stepping = False

    def _step(self, outcome: Any) -> None:
        if self.is_over:
            return
        try:
            step = self._job.throw(outcome) if isinstance(outcome, Exception) else self._job.send(outcome)
        except StopIteration as end:
            self._end(end.value)
        except Exception as error:
            self._end(error)
        else:
            if step is None:
                self._loop.call_soon(self.resume, None)
            elif isinstance(step, float):
                self._loop.call_later(step, self.resume, None)
            elif step is SYNCED:
                self._log.publish_after_sync(
                    PendingFrame(None, publish=self._on_synced, refuse=self._on_log_failed)
                )
            elif isinstance(step, Operation):
                try:
                    step.start(self.resume)
                except Exception as error:
                    self.resume(error)
            else:
                assert callable(step)
                self._thread.submit(step, self.resume)

    def _end(self, outcome: Any) -> None:
        self.is_over = True
        self._forget(self)
        self._on_end(outcome)

    def close(self) -> None:
        self._job.close()

    def _on_synced(self) -> None:
        # In a later turn: all entries of the same batch are published first.
        self._loop.call_soon(self.resume, None)

    def _on_log_failed(self, refusal: Refusal) -> None:
        self._loop.call_soon(self.resume, _log_failed(refusal))


def _log_failed(refusal: Refusal) -> OSError:
    number = errno.ENOSPC if refusal.code == STORAGE_FULL else errno.EIO
    return OSError(number, f"the log is unavailable: {refusal.message}")
