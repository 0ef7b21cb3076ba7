"""A key-value store in memory whose requests fail as networks let them fail.

lost request     CatalogUnavailable; nothing happened
lost answer      CatalogUnavailable; the request was done
late request     CatalogUnavailable; the request is done before a later one

Each request for a key must name the partition that it was written with. Keys with a lease end by `clock`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import TypeVar

from tests.harness.machine.manual_clock import ManualClock
from topicsd.catalog.catalog import CatalogUnavailable
from topicsd.catalog.engines.key_value import ChangedKey, OnChange, VersionedKey

T = TypeVar("T")


class SharedKeys:
    """The keys of one store, which several clients use."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.entries: dict[str, VersionedKey] = {}
        self.partitions: dict[str, str | None] = {}
        self.ends_ms: dict[str, int] = {}
        """When the leases of keys end."""
        self.version = 0
        self.late: list[Callable[[], object]] = []
        self.watches: list[FakeWatch] = []

    def expire(self) -> None:
        for key in [key for key, end in self.ends_ms.items() if end <= self.clock.now_ms()]:
            del self.ends_ms[key], self.entries[key]

    def report(self, key: str) -> None:
        for watch in self.watches:
            watch.report(key)


class FakeKeyValue:
    url = "fake://keys"

    def __init__(self, keys: SharedKeys, random: Random, loss: float = 0.0) -> None:
        self.keys = keys
        self.loss = loss
        self.before_request: Callable[[], None] | None = None
        self._random = random

    def _request(self, request: Callable[[], T]) -> T:
        if self.before_request is not None:
            self.before_request()
        self.keys.expire()
        late = self.keys.late
        while late and self._random.random() < 0.3:
            late.pop(self._random.randrange(len(late)))()
        chance = self._random.random() / self.loss if self.loss else 1.0
        if chance < 0.3:
            raise CatalogUnavailable("lost request")
        if chance < 0.6:
            late.append(request)
            raise CatalogUnavailable("late request")
        result = request()
        if chance < 1.0:
            raise CatalogUnavailable("lost answer")
        return result

    def get(self, key: str, partition: str | None = None) -> VersionedKey | None:
        assert self.keys.partitions.get(key, partition) == partition
        return self._request(lambda: self.keys.entries.get(key))

    def range(self, first: str, end: str, limit: int, partition: str | None = None) -> list[VersionedKey]:
        assert first.count("/") == end.count("/")
        return self._request(lambda: self._range(first, end, limit, partition))

    def _range(self, first: str, end: str, limit: int, partition: str | None) -> list[VersionedKey]:
        keys = [key for key in sorted(self.keys.entries) if first <= key < end]
        assert all(key.count("/") == first.count("/") for key in keys)
        assert all(partition is None or self.keys.partitions[key] == partition for key in keys)
        return [self.keys.entries[key] for key in keys[:limit]]

    def put_if(
        self,
        key: str,
        value: bytes,
        version: int | None,
        partition: str | None = None,
        lease_ms: int | None = None,
    ) -> bool:
        assert self.keys.partitions.setdefault(key, partition) == partition

        def put() -> bool:
            entry = self.keys.entries.get(key)
            if (None if entry is None else entry.version) != version:
                return False
            self.keys.version += 1
            self.keys.entries[key] = VersionedKey(key, value, self.keys.version)
            self.keys.ends_ms.pop(key, None)
            if lease_ms is not None:
                self.keys.ends_ms[key] = self.keys.clock.now_ms() + lease_ms
            self.keys.report(key)
            return True

        return self._request(put)

    def delete_if(self, key: str, version: int, partition: str | None = None) -> bool:
        assert self.keys.partitions.get(key, partition) == partition

        def delete() -> bool:
            entry = self.keys.entries.get(key)
            if entry is None or entry.version != version:
                return False
            del self.keys.entries[key]
            self.keys.ends_ms.pop(key, None)
            self.keys.report(key)
            return True

        return self._request(delete)

    def watch(self, on_change: OnChange) -> FakeWatch:
        return FakeWatch(self.keys, on_change)

    def close(self) -> None:
        pass


class FakeWatch:
    """Reports each change at once."""

    def __init__(self, keys: SharedKeys, on_change: OnChange) -> None:
        self._keys = keys
        self._on_change = on_change
        self._followed: frozenset[str] = frozenset()
        keys.watches.append(self)

    def follow(self, keys: Collection[str]) -> None:
        new, self._followed = sorted(set(keys) - self._followed), frozenset(keys)
        self._on_change([ChangedKey(key) for key in new])

    def report(self, key: str) -> None:
        if key in self._followed:
            entry = self._keys.entries.get(key)
            self._on_change([ChangedKey(key, None if entry is None else entry.value)])

    def close(self) -> None:
        self._keys.watches.remove(self)
