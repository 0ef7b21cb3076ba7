"""The object store of the cluster: one fake store, and for each process a client whose requests can fail.

Promises: a listing is several requests, a page each, so that objects appear and vanish between two of them.
`SharedStore` checks what must hold at each request: a key never has two contents, and no object is deleted
that an extent of the catalog names. The store's clock is not that of any node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from tests.harness.cluster.network import Network, Service
from tests.harness.cluster.virtual_time import Process, World
from tests.harness.machine.fake_store import FakeStore
from topicsd.store.object_store import ObjectInfo, StoreUnavailable

T = TypeVar("T")
Infos = list[ObjectInfo]

PAGE_OBJECTS: Final = 3


class SharedStore(FakeStore):
    """The objects, and the service that nodes reach them through."""

    def __init__(self, world: World, skew_ms: int) -> None:
        super().__init__()
        self._world = world
        self.skew_ms = skew_ms
        self._contents: dict[str, bytes] = {}
        self.service = Service("store", StoreUnavailable)
        self.conflicts = 0.0
        """The share of creations that are answered with a conflict although there is no object."""
        self.is_named: Callable[[str], bool] = lambda key: False
        """Whether the catalog names the object."""
        self.deleted = 0
        self.created_ns: dict[str, int] = {}

    def create(self, key: str, parts: Sequence[bytes], put_id: str) -> None:
        self.now_ms = self._world.clock.now_ms() + self.skew_ms
        if self._world.rng.random() < self.conflicts:
            self.faults.append("conflict")
        super().create(key, parts, put_id)
        content = b"".join(parts)
        self.created_ns.setdefault(key, self._world.now_ns)
        assert self._contents.setdefault(key, content) == content, f"{key} was written with two contents"

    def delete(self, key: str) -> None:
        assert not self.is_named(key), f"{key} was deleted, and an extent of the catalog names it"
        self.deleted += key in self.objects
        super().delete(key)

    def page(self, prefix: str, after: str) -> Infos:
        """Return the first objects of a listing."""
        page = []
        for info in self.list(prefix, after):
            page.append(info)
            if len(page) == PAGE_OBJECTS:
                break
        return page


class StoreClient:
    """The store as one process reaches it."""

    url = "fake://store"

    def __init__(self, network: Network, process: Process, node: str, store: SharedStore) -> None:
        self._network = network
        self._process = process
        self._node = node
        self._store = store

    def create(self, key: str, parts: Sequence[bytes], put_id: str) -> None:
        data = b"".join(parts)
        self._request(f"create {key}", lambda: self._store.create(key, [data], put_id))

    def read(self, key: str, offset: int, size: int) -> bytes:
        return self._request(f"read {key} {offset} {size}", lambda: self._store.read(key, offset, size))

    def info(self, key: str) -> ObjectInfo:
        return self._request(f"info {key}", lambda: self._store.info(key))

    def delete(self, key: str) -> None:
        self._request(f"delete {key}", lambda: self._store.delete(key))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        while page := self._page(prefix, after):
            yield from page
            after = page[-1].key

    def _page(self, prefix: str, after: str) -> Infos:
        return self._request(f"list {prefix} {after}", lambda: self._store.page(prefix, after))

    def _request(self, label: str, effect: Callable[[], T]) -> T:
        return self._network.request(self._process, self._node, self._store.service, label, effect)

    def close(self) -> None:
        pass
