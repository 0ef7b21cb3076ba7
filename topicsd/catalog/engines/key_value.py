"""The small interface that a key-value store must have to hold a catalog: compare-and-set of single keys.

No change covers two keys, and a range is no snapshot: keys that are written meanwhile may be in it or not.

A key may have a partition, which each request for it names. Keys of one partition are in one shard of a store
that has shards, so a range of them asks one shard. Other stores ignore it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol


class VersionedKey(NamedTuple):
    """A key with its value and the version of that value; no two writes of a key share a version."""

    key: str
    value: bytes
    version: int


class ChangedKey(NamedTuple):
    """A key that may have changed, with its value where the store says it."""

    key: str
    value: bytes | None = None


OnChange = Callable[[Sequence[ChangedKey]], object]


class KeyWatch(Protocol):
    """Reports changes of keys until it is closed, on a thread of its own; changes may be lost or doubled."""

    def follow(self, keys: Collection[str]) -> None:
        """Report the changes of these keys, and each new one once its changes are reported."""
        ...

    def close(self) -> None: ...


class KeyValue(Protocol):
    """Methods raise CatalogUnavailable, after which the outcome is unknown, or CatalogRefused."""

    @property
    def url(self) -> str:
        """The URL without credentials, for messages."""
        ...

    def get(self, key: str, partition: str | None = None) -> VersionedKey | None: ...

    def range(self, first: str, end: str, limit: int, partition: str | None = None) -> list[VersionedKey]:
        """Return the entries of up to `limit` keys in [first, end), in order.

        Both bounds and all keys between them have the same number of slashes: Oxia sorts by that number
        first.
        """
        ...

    def put_if(
        self,
        key: str,
        value: bytes,
        version: int | None,
        partition: str | None = None,
        lease_ms: int | None = None,
    ) -> bool:
        """Write a value if the key has this version, or does not exist for None; return whether it was.

        With `lease_ms` the store deletes the key when it was not written for that long, or, in a store with
        sessions, when the process has ended.
        """
        ...

    def delete_if(self, key: str, version: int, partition: str | None = None) -> bool:
        """Delete a key if it has this version; return whether it was deleted."""
        ...

    def watch(self, on_change: OnChange) -> KeyWatch:
        """Begin to report changes, without waiting for the store."""
        ...

    def close(self) -> None: ...
