"""The objects of segments that backups refer to, which must not be deleted.

A backup that refers to exported segments, and copies none of their records, puts an object beside them that
lists them. All that delete objects of segments read these lists first: servers on any node, and vacuum.

B1  The list is put before the backup looks whether all that it refers to exists, and the manifest after that.
    So an object was deleted before that look, and the backup is not made, or it is kept. The server looks for
    lists just before it deletes, and deletes nothing while a reader is at work on the directory.
B2  A list is deleted after the manifest of its backup. One without a manifest costs space, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from topicsd.store.object_store import ObjectStore

REFERENCES: Final = "references"
"""The folder of the lists in a store."""
CHECK_SECONDS: Final = 3600.0
"""How long objects that a backup refers to are kept before its list is looked for again."""
READ_BYTES: Final = 8 << 20


class BackupReferences(msgspec.Struct, frozen=True, array_like=True):
    """What one backup refers to."""

    backup_id: str
    repository: str
    """The URL of the store that has the manifest."""
    stems: list[str]

    @property
    def key(self) -> str:
        return f"{REFERENCES}/{self.backup_id}"


encode_references = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(BackupReferences).decode


def all_references(store: ObjectStore) -> list[BackupReferences]:
    """Return the lists of a store."""
    lists = [_read(store, key) for key in _keys(store)]
    return [one for one in lists if one is not None]


def _keys(store: ObjectStore) -> list[str]:
    return [one.key for one in store.list(f"{REFERENCES}/")]


def _read(store: ObjectStore, key: str) -> BackupReferences | None:
    """Read a list; None when it was deleted since it was found."""
    data = b""
    try:
        while part := store.read(key, len(data), READ_BYTES):
            data += part
    except FileNotFoundError:
        return None
    return _decode(data)


class ReferredStems:
    """The lists of one store, as they were when objects were last about to be deleted; for one thread."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lists: dict[str, frozenset[str]] = {}
        self._checked_at = 0.0

    def without(self, stems: Iterable[str], now: float) -> list[str]:
        """Return the stems that no backup refers to; looks for lists unless all were referred to lately."""
        stems = list(stems)
        is_new = now < self._checked_at + CHECK_SECONDS
        if is_new and not self._left(stems):
            return []
        keys = _keys(self._store)
        self._lists = {key: self._lists[key] for key in keys if key in self._lists}
        for key in keys:
            if key not in self._lists and (references := _read(self._store, key)) is not None:
                self._lists[key] = frozenset(references.stems)
        self._checked_at = now
        return self._left(stems)

    def _left(self, stems: list[str]) -> list[str]:
        return [stem for stem in stems if not any(stem in one for one in self._lists.values())]
