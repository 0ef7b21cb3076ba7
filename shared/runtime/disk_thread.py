"""The thread that waits on the disk, so that the event loop never does.

It runs one job after the other, in the order they were given, and hands each outcome back to the loop.
A job touches file descriptors, paths and numbers only; the state of the engine belongs to the loop.
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
    """What the log needs of an event loop."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Any: ...

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any) -> Any: ...

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Any: ...


class DiskThread(Protocol):
    def submit(self, job: Callable[[], T], done: Callable[[T | OSError], None]) -> None:
        """Run `job` behind those before it, then call `done` on the loop with what it gave."""
        ...

    def drain(self) -> None:
        """Wait for every job that was submitted, and call what each was waited for with."""
        ...

    def stop(self) -> None:
        """End the thread, behind the jobs it has."""
        ...


class Threads(NamedTuple):
    """Those of a shard: a sync waits for no copy, a reader for neither, and no reader for a slow disk that it
    does not read from; `keep` is for work that takes its time."""

    sync: DiskThread
    copy: DiskThread
    read: DiskThread
    cold: DiskThread
    keep: DiskThread


def start_threads(loop: Loop, shard: int, on_wait: Callable[[], object] = lambda: None) -> Threads:
    """Start them; `on_wait` is called now and then while the loop waits for one in `drain`."""
    return Threads(*(SyncThread(loop, f"{kind}-{shard:02d}", on_wait) for kind in Threads._fields))


class SyncThread:
    def __init__(self, loop: Loop, name: str, on_wait: Callable[[], object] = lambda: None) -> None:
        self._loop = loop
        self._on_wait = on_wait
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._outcomes: deque[Callable[[], None]] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T], done: Callable[[T | OSError], None]) -> None:
        self._jobs.put(partial(self._carry_out, job, done))

    def drain(self) -> None:
        reached = threading.Event()
        self._jobs.put(reached.set)
        while not reached.wait(WAIT_SECONDS):
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

    def _carry_out(self, job: Callable[[], T], done: Callable[[T | OSError], None]) -> None:
        outcome: T | OSError
        try:
            outcome = job()
        except OSError as error:
            outcome = error
        except Exception as error:
            # Our own mistake, but the thread must not die with writers waiting: they are told that it failed.
            logger.exception("a disk job failed")
            outcome = OSError(errno.EIO, f"the disk job failed: {error!r}")
        # Through a queue of our own, so that `drain` can take what the loop has not come to yet.
        self._outcomes.append(partial(done, outcome))
        self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        while self._outcomes:
            self._outcomes.popleft()()
