"""Reads of a store that are repeated while it does not answer, for readers without a retry of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from shared.runtime.retries import Retries
from topicsd.store.create_object import repeat_request
from topicsd.store.object_store import ObjectInfo, ObjectStore


class RepeatedReads:
    """An object store whose reads are repeated. Its changes are passed on as they are."""

    def __init__(self, store: ObjectStore, retries: Callable[[], Retries]) -> None:
        self._store = store
        self._retries = retries

    @property
    def url(self) -> str:
        return self._store.url

    def create(self, key: str, parts: Sequence[bytes], put_id: str) -> None:
        self._store.create(key, parts, put_id)

    def read(self, key: str, offset: int, size: int) -> bytes:
        return repeat_request(partial(self._store.read, key, offset, size), self._retries())

    def info(self, key: str) -> ObjectInfo:
        return repeat_request(partial(self._store.info, key), self._retries())

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return iter(repeat_request(lambda: [*self._store.list(prefix, after)], self._retries()))

    def close(self) -> None:
        self._store.close()
