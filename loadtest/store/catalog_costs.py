"""What the requests of brokers cost a catalog: milliseconds a request, and bytes a row."""

from __future__ import annotations

import secrets
import sqlite3
import statistics
import threading
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from loadtest.store.commits import CLOCK, commit_for, open_catalog
from topicsd.catalog.shared.shared_catalog import BrokerNode, Part, SharedCatalog, Slice

PARTS: Final = (1, 64, 256)
NAMES: Final = (1, 1000)
THREADS: Final = 8
TABLES: Final = ("topics", "extents", "parts")


class Costs(NamedTuple):
    """The median time of a request in ms, from one connection, while no other one asks."""

    commit: dict[int, float]
    """By the number of parts, one for each topic."""
    commit_parts: float
    """Of as many parts as the second of PARTS, all for one topic."""
    heads: dict[int, float]
    """By the number of topics."""
    extents: float
    """A lookup of the extents of a topic."""
    claim: float
    heartbeat: float
    at_once: float
    """How many connections' worth of commits it does when THREADS connections commit to other topics."""
    row_bytes: dict[str, float]
    """By table, with its indexes."""

    def commits(self, count: float, topics: float, parts: float) -> float:
        """Return the ms of commits that touch as many topics and parts in all."""
        part = max(0.0, (self.commit_parts - self.commit[1]) / (PARTS[1] - 1))
        return _line(self.commit, count, topics) + (parts - topics) * part

    def polls(self, count: float, names: float) -> float:
        """Return the ms of requests for the heads, or the rows, of as many topics in all."""
        return _line(self.heads, count, names)


def _line(points: dict[int, float], count: float, items: float) -> float:
    """Return `count` times the fixed cost of a request, and `items` times that of an item."""
    low, high = min(points), max(points)
    item = max(0.0, (points[high] - points[low]) / (high - low))
    return count * max(0.0, points[low] - low * item) + items * item


def measure(url: str, seconds: float) -> Costs:
    """Measure a catalog for about ten times `seconds`; its topics are removed again."""
    catalog = open_catalog(url)
    prefix = f"costs-{secrets.token_hex(4)}"
    names = [f"{prefix}-{number}" for number in range(max(NAMES))]
    for name in names:
        catalog.create(name, 1, b"{}")
    commit = {count: statistics.median(commit_for(catalog, names[:count], seconds)) for count in PARTS}
    topics = [(name, 1) for name in names]
    node = BrokerNode(prefix, "http://127.0.0.1:1", 1.0, ("write",), 0)
    try:
        return Costs(
            commit,
            _time(lambda: _commit_parts(catalog, names[0]), seconds),
            {count: _time(partial(catalog.heads, topics[:count]), seconds) for count in NAMES},
            _time(lambda: catalog.extents_from(names[0], 1, 17), seconds),
            _time(lambda: catalog.claim(names[0], "c", 1000), seconds),
            _time(lambda: catalog.heartbeat(node, 1000), seconds),
            _at_once(url, names, seconds),
            _row_bytes(url, catalog),
        )
    finally:
        catalog.leave(prefix)
        for name in names:
            catalog.forget(name, 1)
        catalog.close()


def _commit_parts(catalog: SharedCatalog, name: str) -> None:
    key = secrets.token_hex(16)
    parts = tuple(Part(f"{key}/{number}", 10, 1000) for number in range(PARTS[1]))
    catalog.commit(key, "frames-v1", [Slice(name, 1, 4096, parts)])


def _time(request: Callable[[], object], seconds: float) -> float:
    times: list[float] = []
    end = CLOCK.monotonic() + seconds
    while (started := CLOCK.monotonic()) < end:
        request()
        times.append((CLOCK.monotonic() - started) * 1000)
    return statistics.median(times)


def _at_once(url: str, names: list[str], seconds: float) -> float:
    """Compare commits of many connections, each to topics of its own, with those of one."""
    counts: list[int] = []
    share = PARTS[1]

    def write(number: int) -> None:
        own = open_catalog(url)
        counts.append(len(commit_for(own, names[share * number : share * (number + 1)], seconds)))
        own.close()

    write(0)
    threads = [threading.Thread(target=write, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts[1:]) / counts[0]


def _row_bytes(url: str, catalog: SharedCatalog) -> dict[str, float]:
    if url.startswith("sqlite"):
        return _sqlite_bytes(catalog.url.removeprefix("sqlite://"))
    import psycopg

    with psycopg.connect(url) as db:
        sizes = [
            db.execute(
                f"SELECT pg_total_relation_size('topicsd_shared_{one}')::float8"
                f" / greatest(1, (SELECT count(*) FROM topicsd_shared_{one}))".encode()
            ).fetchone()
            for one in TABLES
        ]
    return {one: size[0] for one, size in zip(TABLES, sizes, strict=True) if size is not None}


def _sqlite_bytes(path: str) -> dict[str, float]:
    db = sqlite3.connect(path)
    sizes: dict[str, float] = {}
    for one in TABLES:
        table = f"topicsd_shared_{one}"
        pages = (
            "SELECT sum(pgsize) FROM dbstat WHERE name IN (SELECT name FROM sqlite_schema WHERE tbl_name = ?)"
        )
        (size,) = db.execute(pages, (table,)).fetchone()
        (rows,) = db.execute(f"SELECT count(*) FROM {table}").fetchone()
        sizes[one] = size / max(1, rows)
    db.close()
    return sizes
