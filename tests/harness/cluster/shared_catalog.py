"""The catalog of the cluster: a real SQLite catalog in memory, and for each process a client that can fail.

Promises: each verb is one request, done at one moment. `SharedCatalog` checks what must hold after each verb:
the objects of an extent exist when it is published, an owner epoch never falls, a ceiling falls only by a
seal. It keeps the changes of owner, from which the judge knows what may be lost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from tests.harness.cluster.network import Network, Service
from tests.harness.cluster.shared_store import SharedStore
from tests.harness.cluster.virtual_time import Process, World
from topicsd.catalog.catalog import CatalogUnavailable, Extent, Fenced, Lookup, NewTopic, Ownership, TopicRow
from topicsd.catalog.sqlite_catalog import SqliteCatalog

T = TypeVar("T")
Rows = list[TopicRow]

CAPTURE_NS: Final = 90 * 10**9
"""The longest time from the capture of a state to the first object of its export."""


class _MemoryConnection(sqlite3.Connection):
    """A database in memory, for which a log file has no meaning."""

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        if statement == "PRAGMA journal_mode":
            statement = "SELECT 'wal'"
        return super().execute(statement, *parameters)


def connect_in_memory(path: str, **options: Any) -> sqlite3.Connection:
    """Open a database of its own in memory, whatever the path is."""
    return sqlite3.connect(":memory:", factory=_MemoryConnection, **options)


class Takeover(NamedTuple):
    """A change of owner without a seal: the seqs from `first` to `last` are lost."""

    name: str
    incarnation: int
    owner_epoch: int
    first: int
    last: int
    at_ns: int
    kept_ns: int
    """Changes without records, such as deletes, that were acknowledged before this are not lost."""


class SharedCatalog:
    def __init__(self, world: World, store: SharedStore) -> None:
        self._world = world
        self.service = Service("catalog", CatalogUnavailable)
        self.real = SqliteCatalog("/catalog", connect_in_memory)
        self.takeovers: list[Takeover] = []
        self.merged = 0
        """Extents that were merged into others."""
        self._store = store
        self._rows: dict[str, TopicRow] = {}
        self._extents: dict[str, list[Extent]] = {}
        self.fenced_ns: dict[tuple[str, str], int] = {}
        """By process and topic: when the process first got the answer that its node is not the owner."""
        self._owners: dict[str, list[tuple[int, str]]] = {}
        """By topic: where the range of each owner begins, and the owner."""
        store.is_named = self._names

    def row(self, name: str) -> TopicRow | None:
        return self._rows.get(name)

    def rows(self) -> Rows:
        return list(self._rows.values())

    def extents(self, name: str) -> list[Extent]:
        return self._extents.get(name, [])

    def owner_of(self, name: str, seq: int) -> str:
        """Return the node whose seq it is, or "" for a topic without an owner."""
        owner = ""
        for first_seq, node in self._owners.get(name, []):
            if first_seq <= seq:
                owner = node
        return owner

    def change(self, verb: Callable[[SqliteCatalog], T], name: str) -> T:
        """Make a change, and check the row after it."""
        before = self._rows.get(name)
        answer = verb(self.real)
        after = next(iter(self.real.list(name, "", 1)), None)
        if after is None or after.name != name:
            self._rows.pop(name, None)
            self._extents.pop(name, None)
            self._owners.pop(name, None)
            return answer
        self._check(before, after)
        self._rows[name] = after
        if before is None or (before.exported_from, before.exported_to) != (
            after.exported_from,
            after.exported_to,
        ):
            self._note_extents(name)
        return answer

    def publish(self, verb: Callable[[SqliteCatalog], TopicRow], name: str) -> TopicRow:
        before, count = self._rows.get(name), len(self.extents(name))
        answer = self.change(verb, name)
        self._note_extents(name)
        if before is not None and before.exported_from == answer.exported_from:
            self.merged += max(0, count - len(self.extents(name)))
        for extent in self.extents(name):
            for one in extent.objects:
                stored = self._store.objects.get(one.key)
                assert stored is not None, f"{name}: the catalog names {one.key}, which does not exist"
                assert len(stored.data) == one.size, (
                    f"{name}: {one.key} has another size than its extent says"
                )
        return answer

    def _note_extents(self, name: str) -> None:
        extents: list[Extent] = []
        while page := self.real.extents_from(name, extents[-1].last_seq + 1 if extents else 0, 256):
            extents += page
        self._extents[name] = extents

    def _check(self, before: TopicRow | None, after: TopicRow) -> None:
        if before is None or before.incarnation != after.incarnation:
            self._owners[after.name] = [(0, after.owner)]
            return
        assert after.owner_epoch >= before.owner_epoch
        assert after.exported_to >= before.exported_to
        assert after.ceiling >= before.ceiling or after.state == "sealed"
        if after.owner_epoch > before.owner_epoch:
            self._owners[after.name].append((before.ceiling + 1, after.owner))
            for process, name in list(self.fenced_ns):
                if name == after.name and process.startswith(f"{after.owner}/"):
                    del self.fenced_ns[process, name]
        if after.owner_epoch > before.owner_epoch and before.state == "owned":
            self._note_takeover(after)

    def _note_takeover(self, row: TopicRow) -> None:
        states = [
            one.key
            for extent in self.extents(row.name)
            for one in extent.objects
            if one.key.endswith(".state")
        ]
        # The state was captured before its object was there, by at most the time of the retries.
        kept_ns = self._store.created_ns[states[-1]] - CAPTURE_NS if states else -1
        self.takeovers.append(
            Takeover(
                row.name,
                row.incarnation,
                row.owner_epoch,
                row.exported_to + 1,
                row.ceiling,
                self._world.now_ns,
                kept_ns,
            )
        )

    def _names(self, key: str) -> bool:
        return any(
            one.key == key
            for extents in self._extents.values()
            for extent in extents
            for one in extent.objects
        ) or any(row.state == "sealed" and row.sealed_key == key for row in self._rows.values())


class CatalogClient:
    """The catalog as one process reaches it."""

    url = "fake://catalog"

    def __init__(self, network: Network, process: Process, node: str, catalog: SharedCatalog) -> None:
        self._network = network
        self._process = process
        self._node = node
        self._catalog = catalog

    def _request(self, label: str, effect: Callable[[], T]) -> T:
        return self._network.request(self._process, self._node, self._catalog.service, label, effect)

    def _change(self, label: str, name: str, verb: Callable[[SqliteCatalog], T]) -> T:
        with self._noting_fences(name):
            return self._request(f"{label} {name}", lambda: self._catalog.change(verb, name))

    @contextmanager
    def _noting_fences(self, name: str) -> Iterator[None]:
        try:
            yield
        except Fenced:
            self._catalog.fenced_ns.setdefault((self._process.name, name), self._process.world.now_ns)
            raise

    def create(self, name: str, topic_id: int, incarnation: int, node: str, ceiling: int) -> TopicRow:
        return self._change(
            f"create row {ceiling}",
            name,
            lambda real: real.create(name, topic_id, incarnation, node, ceiling),
        )

    def create_all(self, new: Sequence[NewTopic], node: str) -> list[TopicRow | Fenced]:
        def create(one: NewTopic) -> TopicRow | Fenced:
            try:
                return self._catalog.change(
                    lambda real: real.create(one.name, one.topic_id, one.incarnation, node, one.ceiling),
                    one.name,
                )
            except Fenced as fenced:
                return fenced

        names = ", ".join(f"{one.name} {one.ceiling}" for one in new)
        return self._request(f"create rows {names}", lambda: [create(one) for one in new])

    def own(self, name: str, ownership: Ownership) -> Lookup:
        return self._request(f"own {name}", lambda: self._catalog.real.own(name, ownership))

    def raise_ceiling(self, name: str, ownership: Ownership, ceiling: int) -> TopicRow:
        return self._change(
            f"raise {ceiling}", name, lambda real: real.raise_ceiling(name, ownership, ceiling)
        )

    def publish_extents(
        self, name: str, ownership: Ownership, add: Sequence[Extent], remove: Sequence[Extent]
    ) -> TopicRow:
        ranges = (
            [f"{one.first_seq}-{one.last_seq}" for one in add],
            [f"{one.first_seq}-{one.last_seq}" for one in remove],
        )
        with self._noting_fences(name):
            return self._request(
                f"publish {name} add {ranges[0]} remove {ranges[1]}",
                lambda: self._catalog.publish(
                    lambda real: real.publish_extents(name, ownership, add, remove), name
                ),
            )

    def extents_from(self, name: str, seq: int, limit: int) -> list[Extent]:
        return self._request(
            f"extents of {name} from {seq}", lambda: self._catalog.real.extents_from(name, seq, limit)
        )

    def seal(self, name: str, ownership: Ownership, last_seq: int, key: str) -> TopicRow:
        return self._change(f"seal {last_seq}", name, lambda real: real.seal(name, ownership, last_seq, key))

    def adopt(
        self, name: str, node: str, incarnation: int, owner_epoch: int, accept_loss: bool = False
    ) -> TopicRow:
        return self._change(
            f"adopt after {owner_epoch}{' with loss' if accept_loss else ''}",
            name,
            lambda real: real.adopt(name, node, incarnation, owner_epoch, accept_loss),
        )

    def forget(self, name: str, ownership: Ownership) -> None:
        self._change("forget", name, lambda real: real.forget(name, ownership))

    def list(self, prefix: str, after: str, limit: int) -> Rows:
        return self._request(f"rows after {after}", lambda: self._catalog.real.list(prefix, after, limit))

    def close(self) -> None:
        pass
