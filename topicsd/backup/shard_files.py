"""The files of one shard that a backup holds.

F1  The files that a snapshot names are stored before the point is taken, and those of the log after it. The
    marks of dead records, which are replaced in place, are therefore never newer than the point.
F2  Of a segment that was active at the snapshot only the bytes that the snapshot names are stored.
F3  A reader lock keeps what the server drops: such a file is in the trash under its old name. The object
    store has no trash; when an object is missing there, the newest snapshot does not name it any more.
F4  What is only in the object store is copied from there, so that a backup needs no other store, or it is
    named. An object never changes, so its key is its identity: it is downloaded once.
F5  Bundles of topics that were adopted since the snapshot are stored after the point, since the log names
    them. A bundle that is empty, or lacks a file, is of an adopt that is not in the log yet: it is left out.
    One that cannot be decoded may be in the middle of its write, which takes much less than WRITE_SECONDS.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Final

from shared.runtime.retries import Pauses, repeat
from topicsd.backup.manifest import Reference
from topicsd.backup.point import ShardEnd
from topicsd.backup.repository import BackupError, Repository
from topicsd.backup.segment_places import (
    FileIdentity,
    FileMissing,
    SegmentPlaces,
    ShardFile,
    files_of,
    marks_of,
    whole_file,
)
from topicsd.backup.upload import SourceFile, Uploader
from topicsd.disk.fs import FileStat, Fs
from topicsd.disk.layout import (
    BUNDLE_NAME,
    bundle_key,
    names_in,
    parse_topic_dir_name,
    parse_trash_name,
    parse_wal_name,
    wal_name,
)
from topicsd.engine.bundle.bundle_format import Bundle, BundleDamage, decode_bundle
from topicsd.engine.checkpoint.snapshot_files import choose_snapshot
from topicsd.engine.checkpoint.snapshot_format import Snapshot
from topicsd.engine.checkpoint.trash import DELETED_SUFFIX
from topicsd.log.file_header import UnknownVersion
from topicsd.log.reader import used_bytes
from topicsd.offline.data_dir import DataDir
from topicsd.segment.entry import DATA, SegmentName

SEARCH_BYTES: Final = 4 << 20
WRITE_SECONDS: Final = 5.0
WRITE_PAUSES: Final = Pauses(0.05, 0.5)


class ShardFiles:
    """The files of one shard, as they are passed to an uploader."""

    def __init__(
        self,
        fs: Fs,
        data_dir: DataDir,
        shard: int,
        places: SegmentPlaces,
        uploader: Uploader,
        repository: Repository,
        *,
        refers: bool,
    ) -> None:
        """Prepare; with `refers` the `.data` of exported segments is only named."""
        self._fs = fs
        self._paths = data_dir.paths(shard)
        self._prefix = os.path.relpath(self._paths.root, data_dir.path)
        self._places = places
        self._uploader = uploader
        self._repository = repository
        self._refers = refers
        self._files: dict[str, None] = {}
        self._references: dict[str, int] = {}

    @property
    def paths(self) -> list[str]:
        """What was stored, by the paths in the backup, sorted."""
        return sorted(self._files)

    @property
    def references(self) -> list[Reference]:
        return [Reference(key, size) for key, size in sorted(self._references.items())]

    def store_snapshot(self) -> Snapshot | None:
        """Store the newest snapshot and everything that it names, except the log."""
        self._files, self._references = {}, {}
        try:
            snapshot, _ = choose_snapshot(self._fs, self._paths)
        except UnknownVersion as error:
            raise BackupError(f"{self._paths.meta}: {error}") from None
        if snapshot is not None:
            for file in _named_by(snapshot):
                self._store(file)
            name = os.path.basename(self._paths.snapshot(snapshot.head.number))
            self._store(whole_file(f"meta/{name}", is_stable=False))
        for name in names_in(self._fs, self._paths.quarantine):
            self._store(whole_file(f"quarantine/{name}", is_stable=True))
        return snapshot

    def store_log(self, snapshot: Snapshot | None, end: ShardEnd) -> None:
        """Store the log from the place of the snapshot to the point, and the bundles that it names."""
        first = 0 if snapshot is None else snapshot.head.start.file
        locations = {}
        for name in names_in(self._fs, self._paths.trash):
            parsed = parse_trash_name(name)
            if parsed is not None and (ordinal := parse_wal_name(parsed[2])) is not None:
                locations[ordinal] = os.path.join(self._paths.trash, name)
        for name in names_in(self._fs, self._paths.wal):
            if (ordinal := parse_wal_name(name)) is not None:
                locations[ordinal] = os.path.join(self._paths.wal, name)
        if end.file and end.file not in locations:
            raise FileMissing(f"{self._paths.wal_file(end.file)} is missing")
        for ordinal, location in sorted(locations.items()):
            if first <= ordinal <= end.file:
                self._store_log_file(ordinal, location, end)
        topics = [] if snapshot is None else snapshot.topics
        captured = {(topic.topic_id, topic.epoch) for topic in topics}
        for incarnation in sorted(self._bundles() - captured):
            self._store_bundle(*incarnation)

    def _store_log_file(self, ordinal: int, location: str, end: ShardEnd) -> None:
        path = f"{self._prefix}/wal/{wal_name(ordinal)}"
        try:
            fd = self._fs.open_read(location)
        except FileNotFoundError:
            # Moved to the trash since it was listed.
            fd = self._fs.open_read(self._places.in_trash(wal_name(ordinal)))
        stat = self._fs.fstat(fd)
        stored = end.offset if ordinal == end.file else self._used_bytes(fd, stat.size)
        # Bytes before an offset of a WAL file never change, so that equal lengths are equal bytes.
        if self._uploader.find(path, stored, _identity(stat)):
            self._fs.close(fd)
        else:
            self._add(path, fd, stat.size, stored, _identity(stat), is_stable=False)
        self._files[path] = None

    def _used_bytes(self, fd: int, size: int) -> int:
        """Return the offset after the last byte that is not zero."""
        end = size
        while end > 0:
            start = max(0, end - SEARCH_BYTES)
            if used := used_bytes(self._fs.pread(fd, end - start, start)):
                return start + used
            end = start
        return 0

    def _bundles(self) -> set[tuple[int, int]]:
        """Return the incarnations that have a bundle file, also among dropped files."""
        names = [name.removesuffix(DELETED_SUFFIX) for name in names_in(self._fs, self._paths.topics)]
        names += [
            name.removesuffix(f".{BUNDLE_NAME}")
            for name in self._places.trash_names()
            if name.endswith(f".{BUNDLE_NAME}")
        ]
        incarnations = {one for name in names if (one := parse_topic_dir_name(name)) is not None}
        return {
            one
            for one in incarnations
            if self._places.find(whole_file(bundle_key(*one), is_stable=False)) is not None
        }

    def _store_bundle(self, topic_id: int, epoch: int) -> None:
        source = whole_file(bundle_key(topic_id, epoch), is_stable=False)
        opened = self._places.open(source)
        if opened is None:
            return
        try:
            bundle = self._read_bundle(opened.fd)
        except BundleDamage as damage:
            raise BackupError(f"{self._prefix}/{source.key}: {damage}") from None
        finally:
            self._fs.close(opened.fd)
        if bundle is None:
            return
        before = dict(self._files)
        try:
            for entry in bundle.topic.segments:
                for file in files_of(bundle.name_of(entry), entry):
                    self._store(file)
            self._store(source)
        except FileMissing:
            self._files = before

    def _read_bundle(self, fd: int) -> Bundle | None:
        """Return the bundle in a file, or None for an empty file (F5)."""

        def attempt() -> Bundle | None:
            size = self._fs.fstat(fd).size
            return decode_bundle(self._fs.pread(fd, size, 0)) if size else None

        retries = self._repository.retries()._replace(seconds=WRITE_SECONDS)
        return repeat(attempt, retries, BundleDamage, WRITE_PAUSES)

    def _store(self, file: ShardFile) -> None:
        path = f"{self._prefix}/{file.key}"
        if self._refers and file.object_key.endswith(DATA):
            self._references[file.object_key] = self._places.object_size(file, self._repository)
            return
        if file.object_key and self._uploader.find(path, file.size, file.object_identity):
            self._files[path] = None
            return
        stat = None if file.object_key else self._places.find(file)
        if stat is not None and self._uploader.find(path, file.size or stat.size, _identity(stat)):
            self._files[path] = None
            return
        opened = self._places.open(file)
        if opened is not None:
            stored = file.size or opened.stat.size
            identity = file.object_identity if file.object_key else _identity(opened.stat)
            self._add(path, opened.fd, stored, stored, identity, is_stable=file.is_stable)
        elif file.object_key:
            self._add_object(path, file)
        elif file.can_rebuild:
            return
        else:
            raise FileMissing(f"{path}: missing, although the snapshot names it")
        self._files[path] = None

    def _add(
        self, path: str, fd: int, size: int, stored: int, identity: FileIdentity, *, is_stable: bool
    ) -> None:
        def read(offset: int, length: int) -> bytes:
            return self._fs.pread(fd, length, offset)

        close = partial(self._fs.close, fd)
        self._uploader.add(SourceFile(path, read, close, size, stored, identity, is_stable))

    def _add_object(self, path: str, file: ShardFile) -> None:
        size = self._places.object_size(file, self._repository)
        if size < file.size:
            raise BackupError(f"{file.object_key}: has {size} of {file.size} bytes in its store")
        stored = file.size or size
        read = partial(self._places.read_object, file.object_key, self._repository)
        source = SourceFile(path, read, _nothing, stored, stored, file.object_identity, is_stable=True)
        self._uploader.add(source)


def _named_by(snapshot: Snapshot) -> Iterator[ShardFile]:
    for topic in snapshot.topics:
        for entry in topic.segments:
            name = SegmentName(topic.topic_id, topic.epoch, entry.first_seq, entry.generation)
            yield from files_of(name, entry)
            if entry.dead_count:
                yield marks_of(name)


def _identity(stat: FileStat) -> FileIdentity:
    return stat.device, stat.inode, stat.modified_ms


def _nothing() -> None:
    """Close nothing: an object needs no descriptor."""
