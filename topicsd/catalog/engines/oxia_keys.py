"""The keys of a catalog in Oxia, through its client library.

The version of a key is its version id, which is one number for a shard. The client library follows the first
assignment of the shards only, and its requests have no deadline of their own. So after each failure its
client is replaced by a new one, and a server that hangs without closing its connections delays a verb for as
long as it hangs. A key with a lease is an ephemeral record: it ends with the session of the client, which is
replaced after a failure, or with the process. gRPC does not survive a fork: open it in processes that never
fork (R8).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from topicsd.catalog.catalog import CatalogExtraMissing, CatalogUnavailable
from topicsd.catalog.engines.key_value import ChangedKey, OnChange, VersionedKey

T = TypeVar("T")

EXTRA: Final = "topicsd[oxia]"
PORT: Final = 6648
NAMESPACE: Final = "default"
CLOSE_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 1.0
_ABSENT: Final = -1


class OxiaKeys:
    def __init__(self, url: str) -> None:
        try:
            import grpc
            import oxia
        except ImportError:
            raise CatalogExtraMissing(f"oxia: needs a client library; install {EXTRA}") from None
        parts = urlsplit(url)
        self._address = f"{parts.hostname}:{parts.port or PORT}"
        self._namespace = parts.path.strip("/") or NAMESPACE
        self.url = f"oxia://{self._address}/{self._namespace}"
        self._oxia: Any = oxia
        self._errors = (grpc.RpcError, oxia.ex.OxiaException, RuntimeError, StopIteration)
        self._lock = threading.Lock()
        self._client: Any = None

    def _request(self, request: Callable[[Any], T]) -> T:
        with self._lock:
            client = self._client
            if client is None:
                client = self._client = self._connect()
        try:
            return request(client)
        except (self._oxia.ex.KeyNotFound, self._oxia.ex.UnexpectedVersionId):
            raise
        except self._errors as error:
            with self._lock:
                if self._client is client:
                    self._client = None
            _close(client)
            raise self._unavailable(error) from None

    def _connect(self) -> Any:
        try:
            return self._oxia.Client(self._address, namespace=self._namespace)
        except self._errors as error:
            raise self._unavailable(error) from None

    def _unavailable(self, error: BaseException) -> CatalogUnavailable:
        code = getattr(error, "code", None)
        reason = code().name if callable(code) else str(error) or type(error).__name__
        return CatalogUnavailable(f"{self.url}: {reason}")

    def get(self, key: str, partition: str | None = None) -> VersionedKey | None:
        try:
            _, value, version = self._request(lambda client: client.get(key, partition_key=partition))
        except self._oxia.ex.KeyNotFound:
            return None
        return VersionedKey(key, bytes(value), version.version_id())

    def range(self, first: str, end: str, limit: int, partition: str | None = None) -> list[VersionedKey]:
        records = self._request(
            lambda client: [*islice(client.range_scan(first, end, partition_key=partition), limit)]
        )
        return [VersionedKey(key, bytes(value), version.version_id()) for key, value, version in records]

    def put_if(
        self,
        key: str,
        value: bytes,
        version: int | None,
        partition: str | None = None,
        lease_ms: int | None = None,
    ) -> bool:
        expected = _ABSENT if version is None else version
        return self._write(
            lambda client: client.put(
                key,
                value,
                partition_key=partition,
                expected_version_id=expected,
                ephemeral=lease_ms is not None,
            )
        )

    def delete_if(self, key: str, version: int, partition: str | None = None) -> bool:
        return self._write(
            lambda client: client.delete(key, partition_key=partition, expected_version_id=version)
        )

    def _write(self, write: Callable[[Any], object]) -> bool:
        """Make a conditional write; return whether its condition was true."""
        try:
            return self._request(write) is not False
        except (self._oxia.ex.KeyNotFound, self._oxia.ex.UnexpectedVersionId):
            return False

    def watch(self, on_change: OnChange) -> OxiaWatch:
        return OxiaWatch(self._connect, self._errors, on_change)

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            _close(client)


class OxiaWatch:
    """The changes of all keys of a namespace, of which those that are followed are reported."""

    def __init__(
        self, connect: Callable[[], Any], errors: tuple[type[Exception], ...], on_change: OnChange
    ) -> None:
        self._connect = connect
        self._errors = (*errors, CatalogUnavailable)
        self._on_change = on_change
        self._keys: frozenset[str] = frozenset()
        self._is_closed = threading.Event()
        self._changes: Any = None
        threading.Thread(target=self._run, name="oxia-watch", daemon=True).start()

    def follow(self, keys: Collection[str]) -> None:
        before, self._keys = self._keys, frozenset(keys)
        if new := sorted(self._keys - before):
            self._on_change([ChangedKey(key) for key in new])

    def close(self) -> None:
        self._is_closed.set()
        if self._changes is not None:
            _close(self._changes)

    def _run(self) -> None:
        while not self._is_closed.is_set():
            with suppress(*self._errors):
                # A client of its own, so that a failed request of another thread does not close it.
                client = self._connect()
                try:
                    self._report(client)
                finally:
                    _close(client)
            self._is_closed.wait(PAUSE_SECONDS)

    def _report(self, client: Any) -> None:
        # The stream connects again by itself, and continues where it was.
        self._changes = client.get_notifications()
        self._on_change([ChangedKey(key) for key in sorted(self._keys)])
        for change in self._changes:
            if self._is_closed.is_set():
                return
            if change.key() in self._keys:
                self._on_change([ChangedKey(change.key())])


def _close(opened: Any) -> None:
    """Close a client or a stream in the background: it waits for threads of its own, which may not end."""
    closing = threading.Thread(target=opened.close, daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)
