"""Disk threads: they wait for the disk, so that the event loop never does.

A thread runs its jobs one after the other, in the order of their submission, and passes each outcome to the
event loop. A job uses only file descriptors, paths and numbers; only the event loop accesses the state of the
engine.
"""

from __future__ import annotations

import errno
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

logger = logging.getLogger("topicsd.log")

WAIT_SECONDS: Final = 0.5


class Loop(Protocol):
    """The methods of an event loop that the log uses."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Any: ...

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any) -> Any: ...

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Any: ...


class DiskThread(Protocol):
    def submit(self, job: Callable[[], T], done: Callable[[T | OSError], None]) -> None:
        """Run `job` after earlier jobs, then call `done` on the loop with its result or error."""
        ...

    def drain(self) -> None:
        """Wait for every submitted job, and run their `done` callbacks."""
        ...

    def stop(self) -> None:
        """Stop the thread after its submitted jobs."""
        ...


class Threads(NamedTuple):
    """The disk threads of one shard.

    There are several so that a sync waits for no copy, a read for neither, and a read from the hot tier not
    for a slow cold disk. `keep` runs long maintenance work. `catalog` and `export` wait for other servers: a
    catalog that hangs delays nothing else, and a slow export no raise of a ceiling.
    """

    sync: DiskThread
    copy: DiskThread
    read: DiskThread
    cold: DiskThread
    keep: DiskThread
    catalog: DiskThread
    export: DiskThread


def start_threads(loop: Loop, shard: int, on_wait: Callable[[], object] = lambda: None) -> Threads:
    """Start the threads of a shard; `drain` calls `on_wait` every `WAIT_SECONDS` while it waits."""
    return Threads(*(SystemDiskThread(loop, f"{kind}-{shard:02d}", on_wait) for kind in Threads._fields))


class SystemDiskThread:
    def __init__(self, loop: Loop, name: str, on_wait: Callable[[], object] = lambda: None) -> None:
        self._loop = loop
        self._on_wait = on_wait
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._outcomes: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T], done: Callable[[T | OSError], None]) -> None:
        self._jobs.put(partial(self._run_job, job, done))

    def drain(self) -> None:
        is_drained = threading.Event()
        self._jobs.put(is_drained.set)
        while not is_drained.wait(WAIT_SECONDS):
            self._on_wait()
        self._deliver()

    def stop(self) -> None:
        self._jobs.put(None)
        while self._thread.is_alive():
            self._thread.join(WAIT_SECONDS)
            self._on_wait()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _run_job(self, job: Callable[[], T], done: Callable[[T | OSError], None]) -> None:
        outcome: T | OSError
        try:
            outcome = job()
        except OSError as error:
            outcome = error
        except Exception as error:
            # A bug in a job must not end the thread while writers wait: report a failure to them.
            logger.exception("disk thread: job failed: unexpected error")
            outcome = OSError(errno.EIO, f"the disk job failed: {error!r}")
        # Through a queue of our own, so that `drain` can run callbacks that the loop has not run yet.
        self._outcomes.append(partial(done, outcome))
        self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._outcomes:
            self._outcomes.popleft()()
