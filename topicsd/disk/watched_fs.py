"""The kernel's file system, with a heartbeat while the event loop's thread waits for the disk.

The supervisor kills a worker whose heartbeat stops. A stalled disk blocks a thread in a write or a sync for
up to minutes, and killing the process does not make the disk faster: the next start waits for the same disk.
So a second thread calls `on_wait` as long as the thread that made the object is in one of the calls that can
stall.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from topicsd.disk.fs import RealFs

LOOK_SECONDS: Final = 0.5

P = ParamSpec("P")
T = TypeVar("T")


def _watched(call: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Wrap a call to set `_is_waiting` while it runs on the watched thread."""

    def run(fs: WatchedFs, /, *args: P.args, **named: P.kwargs) -> T:
        if get_ident() != fs._thread:
            return call(fs, *args, **named)
        fs._is_waiting = True
        try:
            return call(fs, *args, **named)
        finally:
            fs._is_waiting = False

    return run


class WatchedFs(RealFs):
    """A `RealFs` that reports the waits of the thread that made it."""

    def __init__(self, on_wait: Callable[[], object], look_seconds: float = LOOK_SECONDS) -> None:
        self._thread = get_ident()
        self._is_waiting = False
        arguments = (weakref.ref(self), on_wait, look_seconds)
        threading.Thread(target=_watch, args=arguments, name="disk-waits", daemon=True).start()

    pwrite = _watched(RealFs.pwrite)
    pread = _watched(RealFs.pread)
    allocate = _watched(RealFs.allocate)
    sync_data = _watched(RealFs.sync_data)
    sync_dir = _watched(RealFs.sync_dir)


def _watch(watched: weakref.ref[WatchedFs], on_wait: Callable[[], object], look_seconds: float) -> None:
    """Call `on_wait` every `look_seconds` during a wait, until the object is collected."""
    pause = threading.Event()
    while (fs := watched()) is not None:
        if fs._is_waiting:
            on_wait()
        del fs
        pause.wait(look_seconds)
