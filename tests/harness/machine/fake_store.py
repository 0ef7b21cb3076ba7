"""An object store in memory whose requests fail as a test says: the faults that real stores have.

lost request     StoreUnavailable; nothing happened
lost answer      StoreUnavailable; the request was done
conflict         ObjectExists of a store that only asks for a retry; nothing happened
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from topicsd.store.object_store import ObjectExists, ObjectInfo, StoreUnavailable, check_key

Fault = Literal["lost request", "lost answer", "conflict"]


class StoredObject(NamedTuple):
    data: bytes
    put_id: str
    modified_ms: int


class FakeStore:
    url = "fake://store"

    def __init__(self) -> None:
        self.objects: dict[str, StoredObject] = {}
        self.faults: list[Fault | None] = []
        """The faults of the next requests, in order; None is a request that succeeds."""
        self.requests: list[str] = []
        self.now_ms = 0
        self.ignores_conditions = False
        self.ignores_ranges = False

    def _begin(self, request: str) -> Fault | None:
        self.requests.append(request)
        fault = self.faults.pop(0) if self.faults else None
        if fault == "lost request":
            raise StoreUnavailable("connection reset")
        return fault

    def _end(self, fault: Fault | None) -> None:
        if fault == "lost answer":
            raise StoreUnavailable("timed out")

    def create(self, key: str, parts: Sequence[bytes], put_id: str) -> None:
        check_key(key)
        fault = self._begin(f"create {key}")
        if fault == "conflict" or (key in self.objects and not self.ignores_conditions):
            raise ObjectExists(key)
        self.objects[key] = StoredObject(b"".join(parts), put_id, self.now_ms)
        self._end(fault)

    def read(self, key: str, offset: int, size: int) -> bytes:
        fault = self._begin(f"read {key} {offset} {size}")
        data = self._object(key).data
        self._end(fault)
        return data if self.ignores_ranges else data[offset : offset + size]

    def info(self, key: str) -> ObjectInfo:
        fault = self._begin(f"info {key}")
        stored = self._object(key)
        self._end(fault)
        return ObjectInfo(key, len(stored.data), stored.modified_ms, stored.put_id)

    def delete(self, key: str) -> None:
        fault = self._begin(f"delete {key}")
        self.objects.pop(key, None)
        self._end(fault)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        self._end(self._begin(f"list {prefix}"))
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > after:
                stored = self.objects[key]
                yield ObjectInfo(key, len(stored.data), stored.modified_ms, None)

    def close(self) -> None:
        pass

    def _object(self, key: str) -> StoredObject:
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key]
