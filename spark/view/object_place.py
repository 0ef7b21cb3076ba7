"""Files that are in an object store: opened by the driver, and by each task for the files of its ranges.

A task gets the places of its bytes with its partition. So it reads objects from the store itself, and neither
a catalog nor the manifest of a backup. Objects never change and are not moved, so there is no second place to
look for a missing one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from shared.runtime.clock import SystemClock
from shared.runtime.retries import Retries
from shared.settings.store_url import store_folder
from spark.errors import SourceError
from topicsd.disk.fs import Fs, RealFs
from topicsd.disk.layout import ShardPaths, shard_paths
from topicsd.offline.check.segment_check import SegmentFiles
from topicsd.offline.loaded_shard import ReadOnlyStore
from topicsd.segment.objects import SegmentObjects
from topicsd.store.metered import MeteredStore
from topicsd.store.object_fs import ObjectFile, ObjectFs, ObjectRead
from topicsd.store.object_store import StoreRefused
from topicsd.store.open_store import open_store
from topicsd.store.remote_objects import ExtraMissing
from topicsd.store.repeated_reads import RepeatedReads

REPEAT_SECONDS: Final = 60.0


class ObjectPlace(NamedTuple):
    """The files of a data directory that are objects, and the store of its exported segments."""

    root: str
    """The directory of the files, for messages: no path of a file system."""
    files: dict[str, ObjectFile]
    segments_url: str
    """Empty when no segment is exported."""


class StoredFiles:
    """The files of an `ObjectPlace`, open for reading."""

    def __init__(self, stack: ExitStack, url: str, place: ObjectPlace) -> None:
        """Open the store that has the files; the stack closes it."""
        self._stack = stack
        self.objects = open_objects(stack, "path", url)
        self.fs = ObjectFs(self._read_of(self.objects), place.files)
        self._root = place.root
        self._exported = self._open_exported(url, place.segments_url)

    def _open_exported(self, url: str, segments_url: str) -> SegmentObjects | None:
        if segments_url == url:
            return self.objects
        return open_objects(self._stack, "storeUrl", segments_url) if segments_url else None

    def _read_of(self, objects: SegmentObjects) -> ObjectRead:
        return objects.read_range

    def paths(self, shard: int) -> ShardPaths:
        return shard_paths(self._root, shard)

    def segments(self, shard: int) -> SegmentFiles:
        """Return the places of a shard's segments."""
        return SegmentFiles(_StoredSegments(self.fs, self.paths(shard).root), None, self._exported)

    def some_of(self, shard: int, keys: Iterable[str]) -> dict[str, ObjectFile]:
        """Return those files of a shard that have one of the keys."""
        return self.fs.some_of(f"{self.paths(shard).root}/{key}" for key in keys)


class ReadOnceFiles(StoredFiles):
    """Files that are read once and in large ranges, so that a cache of blocks would only copy them."""

    def _read_of(self, objects: SegmentObjects) -> ObjectRead:
        return objects.store.read


class _StoredSegments(ReadOnlyStore):
    """The segments of one shard. Their paths are below a URL, which is no path of this machine."""

    def __init__(self, fs: Fs, root: str) -> None:
        super().__init__(fs, root)
        self._root = root

    def path_of(self, key: str) -> str:
        return f"{self._root}/{key}"


def shown_url(url: str) -> str:
    """Return the URL of a store as messages have it, without its parameters."""
    return urlsplit(url)._replace(query="").geturl().rstrip("/")


def open_objects(stack: ExitStack, option: str, url: str) -> SegmentObjects:
    """Open the store that an option names; a store that does not answer is asked again for a while."""
    store = open_named_store(stack, option, url)
    # A folder that is missing now is not there a minute later either.
    if not store_folder(url):
        store = MeteredStore(RepeatedReads(store, _retries))
    return SegmentObjects(store)


def open_named_store(stack: ExitStack, option: str, url: str) -> MeteredStore:
    """Open the store that an option names, without retries; the stack closes it."""
    try:
        store = open_store(url, RealFs())
    except (ExtraMissing, StoreRefused) as error:
        raise SourceError(f"{option}: {error}") from None
    stack.callback(store.close)
    return store


def _retries() -> Retries:
    return Retries(SystemClock.monotonic, threading.Event().wait, REPEAT_SECONDS)
