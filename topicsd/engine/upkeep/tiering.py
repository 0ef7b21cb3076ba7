"""Export: a sealed segment is copied into the object store and verified before anything names the copy.

1. The files are read into memory and checked there: each record with its checksum, the index, the tags. What
   is damaged is not exported, and what can be rebuilt is.
2. The objects are created in the order .tags, .idx, .data: a listing that shows .data shows a whole segment.
   Their key has a random token, so an attempt never meets the objects of another one.
3. The objects are read back from the store, past every cache, and compared; then `export_segment` returns.
4. The caller records the stem of the keys durably in the segment's entry (R3: objects first).
5. `.data` leaves the data directory once no kept snapshot has the entry without the stem. `.idx`, `.tags` and
   `.del` stay: a start, a delete, an eviction and the event loop need no request to the store.

A crash before 4 leaves objects that nothing names, and the next attempt makes others. A crash after it leaves
two equal copies. An attempt that fails deletes its objects if it can.
"""

from __future__ import annotations

import errno
import hashlib
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import msgspec

from shared.runtime.retries import Retries
from topicsd.engine.upkeep.scrub import scrub
from topicsd.segment.entry import (
    DATA,
    HOT,
    INDEX,
    OBJECT_SUFFIXES,
    SUFFIXES,
    TAGS,
    SegmentDamage,
    SegmentEntry,
    SegmentName,
)
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import COPY_BYTES, KeyList, SegmentStore, SourceRead
from topicsd.store.create_object import create_object, repeat_request
from topicsd.store.object_store import ObjectStore, StoreUnavailable

READ_BACK_BYTES: Final = 8 << 20
TOKEN_BYTES: Final = 4

Throttle = Callable[[int], None]
"""Called with the size of each read; may wait to limit the rate. An exception ends the work."""


def no_throttle(size: int) -> None:
    pass


class ExportedObject(NamedTuple):
    """One object of an exported segment."""

    suffix: str
    size: int
    sha256: str


class Exported(NamedTuple):
    """An exported segment: the stem of its keys, and its objects."""

    stem: str
    objects: list[ExportedObject]


def export_segment(
    store: ObjectStore,
    local: SegmentStore,
    name: SegmentName,
    entry: SegmentEntry,
    owner_epoch: int,
    throttle: Throttle,
    retries: Retries,
) -> Exported:
    """Copy a sealed segment into the store and verify the copy; it takes the memory of the segment.

    Raise SegmentDamage when the local copy is damaged, StoreUnavailable or StoreRefused.
    """
    files = _checked_files(local, name, entry, throttle)
    stem = name.object_stem(owner_epoch, secrets.token_hex(TOKEN_BYTES))
    objects: list[ExportedObject] = []
    try:
        for suffix in reversed(files):
            data = files[suffix]
            create_object(store, stem + suffix, [data], retries)
            objects.append(ExportedObject(suffix, len(data), hashlib.sha256(data).hexdigest()))
        for one in objects:
            _read_back(store, stem, one, throttle, retries)
    except OSError:
        for suffix in OBJECT_SUFFIXES:
            with suppress(OSError):
                store.delete(stem + suffix)
        raise
    return Exported(stem, objects)


def describe_export(
    store: ObjectStore, entry: SegmentEntry, throttle: Throttle, retries: Retries
) -> Exported | None:
    """Return the objects of an exported segment as they are in the store; None when one is missing."""
    objects = []
    for suffix in (TAGS, INDEX, DATA) if entry.has_tags else (INDEX, DATA):
        try:
            digest, size = _digest_of(store, entry.object_stem + suffix, throttle, retries)
        except FileNotFoundError:
            return None
        objects.append(ExportedObject(suffix, size, digest))
    return Exported(entry.object_stem, objects)


def _read_back(
    store: ObjectStore, stem: str, one: ExportedObject, throttle: Throttle, retries: Retries
) -> None:
    """Compare an object with what was put; raise StoreUnavailable when it differs: it is put again later."""
    digest, size = _digest_of(store, stem + one.suffix, throttle, retries)
    if digest != one.sha256:
        what = f"the store returned {size} bytes that differ from the {one.size} that were put"
        raise StoreUnavailable(errno.EIO, what, f"{store.url}/{stem}{one.suffix}")


def _digest_of(store: ObjectStore, key: str, throttle: Throttle, retries: Retries) -> tuple[str, int]:
    """Return SHA-256 and size of an object."""
    digest, offset, size = hashlib.sha256(), 0, READ_BACK_BYTES
    # A short answer is the end of the object, so a small object needs one request.
    while size == READ_BACK_BYTES:
        data = repeat_request(partial(store.read, key, offset, READ_BACK_BYTES), retries)
        size = len(data)
        throttle(size)
        digest.update(data)
        offset += size
    return digest.hexdigest(), offset


def _checked_files(
    local: SegmentStore, name: SegmentName, entry: SegmentEntry, throttle: Throttle
) -> dict[str, bytes]:
    """Read the files that a store gets, and check them as they are in memory; raise SegmentDamage."""
    assert entry.is_sealed
    files = _MemoryFiles()
    for suffix in (DATA, INDEX, TAGS) if entry.has_tags else (DATA, INDEX):
        key = name.key(suffix)
        try:
            # There may be unused bytes after the valid length.
            size = entry.data_bytes if suffix == DATA else local.size(key)
            files.put(key, partial(_throttled_read, local, key, throttle), size)
        except FileNotFoundError:
            if suffix == DATA:
                raise SegmentDamage(name, entry.first_seq, entry.last_seq, "its .data is missing") from None
            # The check rebuilds it from .data.
    # Marks of deletes are local.
    _check(files, name, msgspec.structs.replace(entry, tier=HOT, object_stem="", dead_count=0))
    return {
        suffix: files.data[name.key(suffix)] for suffix in OBJECT_SUFFIXES if name.key(suffix) in files.data
    }


def _throttled_read(source: SegmentStore, key: str, throttle: Throttle, offset: int, size: int) -> bytes:
    data = source.read_range(key, offset, size)
    throttle(len(data))
    return data


class _MemoryFiles:
    """The files of one segment in memory, as a store."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    def put(self, key: str, source_read: SourceRead, size: int) -> None:
        parts: list[bytes] = []
        offset = 0
        while offset < size and (part := source_read(offset, min(COPY_BYTES, size - offset))):
            parts.append(part)
            offset += len(part)
        self.data[key] = b"".join(parts)

    def read_range(self, key: str, offset: int, size: int) -> bytes:
        return self._of(key)[offset : offset + size]

    def delete(self, key: str) -> None:
        del self.data[key]

    def exists(self, key: str) -> bool:
        return key in self.data

    def size(self, key: str) -> int:
        return len(self._of(key))

    def forget(self, key: str) -> None:
        """Do nothing: no descriptor is open."""

    def close(self) -> None:
        """Do nothing: no descriptor is open."""

    def list(self, prefix: str) -> KeyList:
        return sorted(key for key in self.data if key.startswith(prefix))

    def _of(self, key: str) -> bytes:
        if key not in self.data:
            raise FileNotFoundError(errno.ENOENT, "not in memory", key)
        return self.data[key]


def _check(
    store: SegmentStore, name: SegmentName, entry: SegmentEntry, throttle: Throttle = no_throttle
) -> None:
    """Read a segment whole from this store alone; raise the first damage."""
    work = scrub(SegmentReader(store), name, entry)
    while True:
        try:
            throttle(next(work))
        except StopIteration as end:
            if end.value:
                raise end.value[0] from None
            return


def verify_copy(
    store: SegmentStore, name: SegmentName, entry: SegmentEntry, throttle: Throttle = no_throttle
) -> None:
    """Read a segment whole from this store alone; if it is damaged, delete it and raise SegmentDamage."""
    try:
        _check(store, name, entry, throttle)
    except SegmentDamage:
        delete_copy(store, name)
        raise


def delete_copy(store: SegmentStore, name: SegmentName) -> None:
    """Delete those of a segment's files that exist in the store."""
    for suffix in SUFFIXES:
        with suppress(FileNotFoundError):
            store.delete(name.key(suffix))
