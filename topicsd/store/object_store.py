"""The interface of an object store, and the errors that all stores raise.

An object is immutable: it is created whole or not at all, read in ranges, and deleted. There is no call that
replaces one, so a reader that knows a key needs no version. The calls block; call them on a thread.

    error                 meaning                                            is it worth a retry?
    FileNotFoundError     no such object                                     no
    ObjectExists          `create` found an object under the key             no: see `create_object.py`
    StoreUnavailable      timeout, connection, 5xx, throttling               yes, after a while
    StoreFull             a disk or a quota is full: a StoreUnavailable      yes, when there is room again
    StoreRefused          credentials, permissions, a wrong bucket or URL    no, until the settings change
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

KEY_BYTES_MAX = 900
"""All stores allow at least this, with room for a prefix."""


class ObjectExists(FileExistsError):
    """An object with this key exists; it may be our own, of a request whose answer was lost."""


class StoreUnavailable(OSError):
    """The store did not answer, or asked for a pause; whether a write happened is unknown."""


class StoreFull(StoreUnavailable):
    """The store has no room for an object."""


class StoreRefused(OSError):
    """The store answered that the request may not be made; a retry gives the same answer."""


class ObjectInfo(NamedTuple):
    """What a store says about one object."""

    key: str
    size: int
    modified_ms: int
    """The time of creation by the clock of the store, never by ours."""
    put_id: str | None
    """The id that `create` was called with; None where a listing does not include it."""


class ObjectStore(Protocol):
    """Objects by key. A key is a relative path with "/" between its parts."""

    @property
    def url(self) -> str:
        """The URL without credentials, for messages."""
        ...

    def create(self, key: str, parts: Sequence[bytes], put_id: str) -> None:
        """Create an object in one request, durably; raise ObjectExists when the key is taken."""
        ...

    def read(self, key: str, offset: int, size: int) -> bytes:
        """Read up to `size` bytes from `offset`; fewer only at the end of the object."""
        ...

    def info(self, key: str) -> ObjectInfo: ...

    def delete(self, key: str) -> None:
        """Delete an object; a missing one is no error."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose keys begin with `prefix` and sort after `after`, in order."""
        ...

    def close(self) -> None: ...


def check_key(key: str) -> None:
    """Assert that a key is safe in every store: relative, ASCII, without empty or dot parts."""
    parts = key.split("/")
    assert key.isascii(), key
    assert key.isprintable(), key
    assert len(key) <= KEY_BYTES_MAX, key
    assert all(part not in ("", ".", "..") for part in parts), key
