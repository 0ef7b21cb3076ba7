"""Commits of blobs to a catalog for shared topics: `python -m loadtest.store.commits URL`.

One broker commits blobs with 1, 64 and 256 topics, one part each; then WRITERS brokers in PROCESSES processes
commit to one topic. The topics are new, and are removed at the end. A catalog of one process is not measured
with several.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import threading
import time
import uuid
from multiprocessing.synchronize import Barrier
from typing import Any, Final

from shared.runtime.clock import SystemClock
from shared.runtime.retries import Retries
from topicsd.catalog.shared.open_shared import open_shared_catalog
from topicsd.catalog.shared.shared_catalog import Part, SharedCatalog, Slice

CLOCK: Final = SystemClock()
TOPICS: Final = (1, 64, 256)
SECONDS: Final = 5.0
WRITERS: Final = 16
PROCESSES: Final = 4


def open_catalog(url: str) -> SharedCatalog:
    retries = Retries(CLOCK.monotonic, time.sleep, 30.0)
    return open_shared_catalog(url, tempfile.gettempdir(), retries, CLOCK.now_ms)


def commit_for(catalog: SharedCatalog, names: list[str], seconds: float) -> list[float]:
    """Commit blobs to topics until the time is over; return the ms of each commit."""
    times: list[float] = []
    end = CLOCK.monotonic() + seconds
    while (started := CLOCK.monotonic()) < end:
        key = f"llog/wal-shared/{uuid.uuid4()}"
        slices = [
            Slice(name, 1, 4096 + 1000 * number, (Part(f"{key}/{number}", 10, 1000),))
            for number, name in enumerate(names)
        ]
        results = catalog.commit(key, "frames-v1", slices)
        times.append((CLOCK.monotonic() - started) * 1000)
        assert all(one.status in ("committed", "repeated") for parts in results for one in parts)
    return times


def line(title: str, times: list[float], seconds: float) -> str:
    times = sorted(times)
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    return f"{title:36} {len(times) / seconds:8.0f} commits/s   p50 {p50:7.2f} ms   p99 {p99:7.2f} ms"


def write_hot(url: str, name: str, start: Barrier, times: Any) -> None:
    """Run the writers of one process."""

    def write() -> None:
        catalog = open_catalog(url)
        start.wait()
        times.put(commit_for(catalog, [name], SECONDS))
        catalog.close()

    threads = [threading.Thread(target=write) for _ in range(WRITERS // PROCESSES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hot(url: str, name: str) -> list[float]:
    context = multiprocessing.get_context("spawn")
    times = context.Queue()
    start = context.Barrier(WRITERS)
    processes = [context.Process(target=write_hot, args=(url, name, start, times)) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    every = [one for _ in range(WRITERS) for one in times.get()]
    for process in processes:
        process.join()
    return every


def main(url: str) -> None:
    catalog = open_catalog(url)
    names = [f"bench-{uuid.uuid4().hex[:8]}-{number}" for number in range(max(TOPICS))]
    for name in names:
        catalog.create(name, 1, b"{}")
    for count in TOPICS:
        commit_for(catalog, names[:count], SECONDS / 5)
        print(
            line(f"{count} topics a blob", commit_for(catalog, names[:count], SECONDS), SECONDS), flush=True
        )
    if not url.startswith("sqlite"):
        print(line(f"{WRITERS} writers, one topic", hot(url, names[0]), SECONDS), flush=True)
    for name in names:
        catalog.forget(name, 1)
    catalog.close()


if __name__ == "__main__":
    main(sys.argv[1])
