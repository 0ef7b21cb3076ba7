"""The script of verbs for shared topics that `catalog_crash.py` interrupts."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

from tests.harness.catalog.catalog_crash import Crash
from tests.harness.catalog.shared_oracle import SharedOracle
from topicsd.catalog.shared.shared_catalog import (
    BrokerNode,
    Claim,
    Compaction,
    Part,
    Producer,
    SharedCatalog,
    SharedExtent,
    Slice,
)
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog

NOW_MS: Final = 1_700_000_000_000

_PARTS: Final = (Part("a1", 2, 20, Producer("p", 1, 2)), Part("a2", 1, 10))
BLOB: Final = (Slice("t", 7, 50, _PARTS), Slice("u", 8, 80, (Part("a3", 3, 30), Part("a1", 1, 5))))
LATER: Final = (
    Slice("t", 7, 50, (Part("a4", 2, 20), Part("a5", 1, 9, Producer("p", 9, 9)), Part("a6", 1, 7))),
)
COMPACTED: Final = SharedExtent(1, 3, "COMPACTED", "compacted", "segment", 0, 99, NOW_MS)
COMPACTION: Final = Compaction("c1", "t", 7, COMPACTED)
NEXT: Final = Compaction("c2", "t", 7, SharedExtent(4, 6, "COMPACTED", "next", "segment", 0, 88, NOW_MS))
AGAIN: Final = Compaction("c3", "t", 7, SharedExtent(1, 6, "COMPACTED", "again", "segment", 0, 187, NOW_MS))
CLAIM: Final = Claim("t", "compactor", NOW_MS, 60_000)

SCRIPT: Final[tuple[Callable[[SharedCatalog], object], ...]] = (
    lambda to: to.create("t", 7, b"{}"),
    lambda to: to.create("u", 8, b"{}"),
    lambda to: to.commit("blob", "frames-v1", BLOB),
    lambda to: to.claim("t", "compactor", 60_000),
    lambda to: to.begin_compaction(CLAIM, COMPACTION),
    lambda to: to.finish_compaction("t"),
    lambda to: to.commit("later", "frames-v1", LATER),
    lambda to: to.begin_compaction(CLAIM, NEXT),
    lambda to: to.finish_compaction("t"),
    lambda to: to.begin_compaction(CLAIM, AGAIN),
    lambda to: to.finish_compaction("t"),
    lambda to: to.release(CLAIM),
    lambda to: to.trim("t", 7, 4, "deleted"),
    lambda to: to.fence("t", 7, "FENCED"),
    lambda to: to.configure("u", 8, b'{"a":1}', 1),
    lambda to: to.condemn(["blob", "orphan"]),
    lambda to: to.heartbeat(BrokerNode("n", "http://n:1", 1.0, ("read",), 5), 30_000),
    lambda to: to.leave("n"),
    lambda to: to.forget("u", 8),
)


class YoungOracle(SharedOracle):
    """An oracle that compacts extents of any age, as the catalog below does."""

    repeated_ms = 0


def _facts(catalog: SharedCatalog) -> object:
    extents = [catalog.extents_from(name, 0, 10) for name in ("t", "u")]
    return catalog.list("", "", 10), extents, catalog.nodes()


def _open(path: str, connect: Callable[..., sqlite3.Connection]) -> Any:
    return SqliteSharedCatalog(path, lambda: NOW_MS, connect, repeated_ms=0)


SHARED: Final = Crash(SCRIPT, _open, lambda: YoungOracle(lambda: NOW_MS), _facts)
