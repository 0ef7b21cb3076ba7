"""Count the requests of a store, for their price (R7, `shared/contract/store_prices.py`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from shared.contract.store_prices import PRICES, Prices
from topicsd.store.object_store import ObjectExists, ObjectInfo, ObjectStore

T = TypeVar("T")

LISTED_AT_ONCE: Final = 1000


class RequestTotals:
    """The requests of one store since it was opened."""

    __slots__ = (
        "bytes_read",
        "bytes_written",
        "creates",
        "deletes",
        "failures",
        "infos",
        "lists",
        "objects_created",
        "objects_deleted",
        "reads",
    )

    def __init__(self) -> None:
        self.creates = self.reads = self.infos = self.lists = self.deletes = self.failures = 0
        self.bytes_read = self.bytes_written = self.objects_created = self.objects_deleted = 0

    def dollars(self, prices: Prices) -> float:
        """Return the price of the requests so far."""
        return prices.requests(self.creates + self.lists, self.reads + self.infos)


class MeteredStore:
    """An object store that counts; one object for all threads of a process."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.totals = RequestTotals()

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def prices(self) -> Prices:
        return PRICES[self.url.partition(":")[0]]

    def _request(self, request: Callable[[], T], kind: str) -> T:
        """Make a request; count it by its kind, and as a failure when it was not answered.

        That an object exists, or does not, is an answer.
        """
        failed = 1
        try:
            result = request()
            failed = 0
            return result
        except (ObjectExists, FileNotFoundError):
            failed = 0
            raise
        finally:
            self._add(**{kind: 1, "failures": failed})

    def _add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self.totals, name, getattr(self.totals, name) + count)

    def create(self, key: str, parts: Sequence[bytes], put_id: str) -> None:
        self._request(lambda: self._store.create(key, parts, put_id), "creates")
        self._add(objects_created=1, bytes_written=sum(map(len, parts)))

    def read(self, key: str, offset: int, size: int) -> bytes:
        data = self._request(lambda: self._store.read(key, offset, size), "reads")
        self._add(bytes_read=len(data))
        return data

    def info(self, key: str) -> ObjectInfo:
        return self._request(lambda: self._store.info(key), "infos")

    def delete(self, key: str) -> None:
        self._request(lambda: self._store.delete(key), "deletes")
        self._add(objects_deleted=1)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        # A store answers up to a thousand objects for each request, and one request when there are none.
        self._add(lists=1)
        for number, info in enumerate(self._store.list(prefix, after), 1):
            if number % LISTED_AT_ONCE == 0:
                self._add(lists=1)
            yield info

    def close(self) -> None:
        self._store.close()
