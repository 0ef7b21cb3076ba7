"""Where a file of a shard is while its server runs: in place, in the trash, or in the object store."""

from __future__ import annotations

import os
from functools import partial
from typing import NamedTuple

import xxhash

from shared.settings.store_url import store_folder
from topicsd.backup.repository import BackupError, Repository
from topicsd.disk.fs import FileStat, Fs
from topicsd.disk.layout import ShardPaths, names_in, parse_trash_name, shard_paths
from topicsd.engine.checkpoint.trash import DELETED_SUFFIX
from topicsd.segment.entry import DATA, DEAD, INDEX, OBJECT_SUFFIXES, TAGS, SegmentEntry, SegmentName
from topicsd.segment.index_file import ENTRY_BYTES, FOOTER_BYTES
from topicsd.store.create_object import repeat_request
from topicsd.store.object_store import ObjectStore

FileIdentity = tuple[int, int, int]
TRIES = 3


class FileMissing(BackupError):
    """A file that the snapshot names is nowhere; a newer snapshot may not name it."""


class ShardFile(NamedTuple):
    """A file of a segment, or another one of the shard, that a backup holds."""

    key: str
    """Its path below the directory of the shard."""
    size: int
    """Its valid length; 0 when that is the length of the file."""
    object_key: str
    """The object with the same bytes; empty without one."""
    is_stable: bool
    """Whether it never changes again."""
    can_rebuild: bool
    """Whether a reader makes it again from the others of its segment."""

    @property
    def object_identity(self) -> FileIdentity:
        """An identity for wherever the bytes are: a key of the store is never written twice."""
        return (0, 0, xxhash.xxh3_64_intdigest(self.object_key.encode()) >> 1)


def whole_file(key: str, *, is_stable: bool) -> ShardFile:
    return ShardFile(key, 0, "", is_stable, can_rebuild=False)


def files_of(name: SegmentName, entry: SegmentEntry) -> list[ShardFile]:
    """Return the files of a segment, except its marks."""
    sizes = {DATA: entry.data_bytes, INDEX: entry.count * ENTRY_BYTES + FOOTER_BYTES * entry.is_sealed}
    suffixes = [suffix for suffix in OBJECT_SUFFIXES if suffix != TAGS or entry.has_tags]
    return [
        ShardFile(
            name.key(suffix),
            sizes.get(suffix, 0),
            entry.object_stem and entry.object_stem + suffix,
            entry.is_sealed,
            suffix != DATA,
        )
        for suffix in suffixes
    ]


def marks_of(name: SegmentName) -> ShardFile:
    # Replaced in place, but seldom.
    return whole_file(name.key(DEAD), is_stable=True)


class OpenedFile(NamedTuple):
    """A file that was found, open for reading."""

    fd: int
    stat: FileStat


class SegmentPlaces:
    """The places of the files of one shard."""

    def __init__(
        self, fs: Fs, paths: ShardPaths, shard: int, store_url: str, store: ObjectStore | None
    ) -> None:
        folder = store_folder(store_url)
        self._fs = fs
        self._paths = paths
        # Where earlier versions moved old segments.
        self._cold = shard_paths(folder, shard) if folder else None
        self._store = store
        self._trash: dict[str, str] = {}

    def find(self, file: ShardFile) -> FileStat | None:
        """Return the stat of the local file, or None when there is none of that length."""
        for _ in range(TRIES):
            try:
                stat = self._fs.stat(self._path_of(file.key))
            except FileNotFoundError:
                continue  # The server moved it since it was located.
            return stat if stat.size >= file.size else None
        return None

    def open(self, file: ShardFile) -> OpenedFile | None:
        """Open the local file, or return None as `find` does."""
        for _ in range(TRIES):
            try:
                fd = self._fs.open_read(self._path_of(file.key))
            except FileNotFoundError:
                continue
            stat = self._fs.fstat(fd)
            if stat.size >= file.size:
                return OpenedFile(fd, stat)
            self._fs.close(fd)
            return None
        return None

    def object_size(self, file: ShardFile, repository: Repository) -> int:
        """Return the size of the object; raise FileMissing."""
        if self._store is None:
            raise FileMissing(f"{file.key}: only in an object store; name that with --store-url")
        try:
            return repeat_request(partial(self._store.info, file.object_key), repository.retries()).size
        except FileNotFoundError:
            raise FileMissing(f"{self._store.url}/{file.object_key}: missing") from None

    def read_object(self, key: str, repository: Repository, offset: int, size: int) -> bytes:
        """Read a part of an object; raise FileMissing."""
        assert self._store is not None
        try:
            return repeat_request(partial(self._store.read, key, offset, size), repository.retries())
        except FileNotFoundError:
            raise FileMissing(f"{self._store.url}/{key}: missing") from None

    def in_trash(self, name: str) -> str:
        """Return the path of a dropped file by its former name; list the trash again for a new one."""
        if name not in self._trash:
            self._list_trash()
        return self._trash.get(name, os.path.join(self._paths.root, name))

    def trash_names(self) -> list[str]:
        """Return the former names of all dropped files."""
        self._list_trash()
        return list(self._trash)

    def _list_trash(self) -> None:
        for trash_name in names_in(self._fs, self._paths.trash):
            if (parsed := parse_trash_name(trash_name)) is not None:
                self._trash[parsed[2]] = os.path.join(self._paths.trash, trash_name)

    def _path_of(self, key: str) -> str:
        directory, name = os.path.split(os.path.join(self._paths.root, key))
        candidates = [os.path.join(directory, name), os.path.join(directory + DELETED_SUFFIX, name)]
        if self._cold is not None:
            candidates.append(os.path.join(self._cold.root, key))
        for candidate in candidates:
            try:
                self._fs.stat(candidate)
            except FileNotFoundError:
                continue
            return candidate
        return self.in_trash(f"{os.path.basename(directory)}.{name}")
