"""Count the requests of a store, and what they cost at list prices.

Stores bill by request and by stored byte, so a design that polls costs money while nothing happens. The
counters make it visible (R7). The table has the list prices of the vendors' cheapest common regions, standard
class, on the date below; discounts, traffic and other classes are not in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from topicsd.store.object_store import ObjectInfo, ObjectStore

T = TypeVar("T")

PRICES_DATE: Final = "2026-10-31"
LISTED_AT_ONCE: Final = 1000


class Prices(NamedTuple):
    """US dollars."""

    write_1000: float
    """A thousand PUT or LIST requests."""
    read_1000: float
    """A thousand GET or HEAD requests."""
    gib_month: float


PRICES: Final = {
    "s3": Prices(0.005, 0.0004, 0.023),
    "gs": Prices(0.005, 0.0004, 0.020),
    "az": Prices(0.0065, 0.0005, 0.0208),
    "file": Prices(0.0, 0.0, 0.0),
}
"""By the scheme of the URL; deletes are free everywhere."""


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
        writes, reads = self.creates + self.lists, self.reads + self.infos
        return (writes * prices.write_1000 + reads * prices.read_1000) / 1000


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
        """Make a request; count it by its kind, and as a failure when it raised."""
        failed = 1
        try:
            result = request()
            failed = 0
            return result
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
