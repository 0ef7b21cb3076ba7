"""Vacuum of the objects of shared topics: delete those to which no extent refers.

X1  An object is looked at when it is older than the grace, by the clock of the store. The grace exceeds the
    time from a PUT to its commit, so that few blobs on their way are disturbed. It is no rule of safety.
X2  An object is condemned in the catalog first, which answers with those that no extent names. A commit or a
    compaction of a condemned object is refused, and its records are put into another one (C6). So no object
    is deleted that a stalled process may still commit (P5).
X3  Catalog first, then the object (R3). A reader that looked up an extent before it was removed finds the
    object missing, and looks it up again (E4).
X4  The present time of the store is that of an object that was just put.
X5  Any number of processes may run a pass at once, which only costs listings. So a pass of schedulers has a
    number, its time over the interval, and the first one that creates the object of that number runs it.

X6  A pass ends at once unless the catalog is that of the store (`topicsd/broker/catalog_of_store.py`).

Each step is safe to repeat and to end at any point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from shared.runtime.retries import Retries
from topicsd.broker.catalog_of_store import FOLDERS, check_catalog
from topicsd.broker.steps import BlockingSteps
from topicsd.broker.upkeep.stages import Staged
from topicsd.broker.upkeep.store_clock import store_time
from topicsd.catalog.shared.shared_catalog import EXTENTS_AT_ONCE, TOPICS_AT_ONCE, SharedCatalog
from topicsd.store.create_object import create_object, repeat_request
from topicsd.store.object_store import ObjectExists, ObjectInfo, ObjectStore

CONDEMNED_AT_ONCE: Final = 500
GRACE_MS: Final = 3_600_000
PASSES: Final = "llog/vacuum"
"""The folder of the objects that passes of schedulers create (X5)."""
EXAMPLES_MAX: Final = 20


class BlobVacuumReport(NamedTuple):
    objects: int
    young: int
    orphans: int
    """Objects older than the grace that no extent names; all were deleted, unless it was a dry run."""
    byte_count: int
    examples: list[ObjectInfo]
    """Some of the orphans."""


class BlobVacuum:
    def __init__(
        self, store: ObjectStore, catalog: SharedCatalog, retries: Callable[[], Retries], grace_ms: int
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._retries = retries
        self._grace_ms = grace_ms

    def run(self, is_dry: bool = False) -> BlockingSteps[BlobVacuumReport]:
        """Condemn and delete the orphans of the store; a dry run counts them and changes nothing."""
        yield Staged("lookup", partial(check_catalog, self._store, self._catalog, self._retries))
        named: set[str] | None = (yield Staged("lookup", self.named)) if is_dry else None
        now_ms: int = yield Staged("list", partial(store_time, self._store, self._retries))
        examples: list[ObjectInfo] = []
        objects = young = orphans = byte_count = 0
        for folder in FOLDERS:
            listed: Iterator[ObjectInfo] = self._store.list(folder)
            while page := (yield Staged("list", partial(_next_page, listed))):
                old = {one.key: one for one in page if one.modified_ms <= now_ms - self._grace_ms}
                objects += len(page)
                young += len(page) - len(old)
                if named is not None:
                    keys = old.keys() - named
                else:
                    keys = yield Staged("condemn", partial(self.condemn, sorted(old)))
                    for key in sorted(keys):
                        yield Staged("delete", partial(self._delete, key))
                examples += [old[key] for key in sorted(keys)[: EXAMPLES_MAX - len(examples)]]
                orphans += len(keys)
                byte_count += sum(old[key].size for key in keys)
        return BlobVacuumReport(objects, young, orphans, byte_count, examples)

    def run_pass(self, number: int) -> BlockingSteps[BlobVacuumReport | None]:
        """Run the pass of this number; return None when another process does (X5)."""
        if not (yield Staged("claim", partial(self._claim, number))):
            return None
        report = yield from self.run()
        yield Staged("delete", partial(self._forget_passes, number))
        return report

    def _claim(self, number: int) -> bool:
        try:
            create_object(self._store, _pass_key(number), [b""], self._retries())
        except ObjectExists:
            return False
        return True

    def _forget_passes(self, number: int) -> None:
        """Delete the objects of earlier passes, of which no process is late enough to create one again."""
        for info in list(self._store.list(f"{PASSES}/")):
            if info.key < _pass_key(number - 1):
                self._delete(info.key)

    def condemn(self, keys: list[str]) -> set[str]:
        return self._catalog.condemn(keys) if keys else set()

    def named(self) -> set[str]:
        """Return the objects that extents name now."""
        named: set[str] = set()
        after = ""
        while topics := self._catalog.list("", after, TOPICS_AT_ONCE):
            for topic in topics:
                seq = 1
                while extents := self._catalog.extents_from(topic.name, seq, EXTENTS_AT_ONCE):
                    named.update(extent.key for extent in extents)
                    seq = extents[-1].last_seq + 1
            after = topics[-1].name
        return named

    def _delete(self, key: str) -> None:
        repeat_request(partial(self._store.delete, key), self._retries())


def _pass_key(number: int) -> str:
    return f"{PASSES}/{number:016d}"


def _next_page(listed: Iterator[ObjectInfo]) -> list[ObjectInfo]:
    return list(islice(listed, CONDEMNED_AT_ONCE))
