"""The active segment of a topic, to which the checkpoint appends frames until it is sealed.

Bytes become part of a segment when a snapshot names its lengths: bytes after these lengths count as never
written, and the next open cuts them off. So no write has to be undone after a crash, a full disk or a failed
write. The order of the writes only keeps the files consistent for outside readers:

1. Frames before their index entries: no entry refers to missing bytes.
2. Tags before the footer, which makes an index look sealed. Tags also need new disk space.
3. On `sync` the contents before the names that lead to them, and the directory before its name in `topics/`.
   Only then may a snapshot name the lengths.

A failed sync makes the file unfit: the kernel marks the pages clean. The checkpoint stops then, and the next
process cuts the file and writes it again from the log.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress

from topicsd.disk.atomic_replace import exists, recreate_file, write_all
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.segment.data_file import (
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    encode_segment_header,
    is_media_error,
)
from topicsd.segment.entry import DATA, HOT, INDEX, TAGS, SegmentDamage, SegmentEntry
from topicsd.segment.index_file import ENTRY_BYTES, IndexDamage, decode_index, encode_entries, encode_footer
from topicsd.segment.rebuild import rebuild_index, rebuild_tags
from topicsd.segment.tags_file import encode_tags

logger = logging.getLogger("topicsd.segment")


class SegmentWriter:
    """The open files of one active segment.

    After `sync` a snapshot may name its `count` and `data_bytes`.
    """

    def __init__(self, fs: Fs, paths: ShardPaths, header: SegmentHeader, data_fd: int, index_fd: int) -> None:
        self.header = header
        self.count = 0
        self.data_bytes = SEGMENT_HEADER_BYTES
        self._fs = fs
        self._data_fd = data_fd
        self._index_fd = index_fd
        self._tags_fd: int | None = None
        self._data_path, self._index_path, self._tags_path = (
            os.path.join(paths.root, header.name.key(suffix)) for suffix in (DATA, INDEX, TAGS)
        )
        self._directory = paths.topic_dir(header.topic_id, header.epoch)
        self._topics = paths.topics
        self._unsynced_paths: set[str] = set()
        self._is_unfit = False
        # A failed write may have left bytes after the lengths.
        self._is_ragged = False

    @property
    def paths_to_sync(self) -> list[str]:
        """The paths that `sync` will sync, in its order."""
        order = (self._data_path, self._index_path, self._tags_path, self._directory, self._topics)
        return [path for path in order if path in self._unsynced_paths]

    def append(self, data: bytes, entries: bytes) -> None:
        """Append frames and their index entries; after an error the lengths are unchanged."""
        assert not self._is_unfit
        assert len(entries) % ENTRY_BYTES == 0
        self._unsynced_paths |= {self._data_path, self._index_path}
        self._is_ragged = True
        write_all(self._fs, self._data_fd, data, self.data_bytes)
        write_all(self._fs, self._index_fd, entries, self.count * ENTRY_BYTES)
        self._is_ragged = False
        self.data_bytes += len(data)
        self.count += len(entries) // ENTRY_BYTES

    def footer(self) -> bytes:
        """Return the footer for the index, after checking the index, and rebuilding it if damaged."""
        try:
            entries = self._fs.pread(self._index_fd, self.count * ENTRY_BYTES, 0)
            index = decode_index(entries, self.header.first_seq, self.count, sealed=False)
            if index.data_end != self.data_bytes:
                raise IndexDamage(f"ends at {index.data_end} of the {self.data_bytes} bytes of .data")
        except (IndexDamage, OSError) as damage:
            if isinstance(damage, OSError) and not is_media_error(damage):
                raise
            entries = self._rebuild_index(str(damage))
        return encode_footer(entries)

    def tags(self) -> bytes | None:
        """Encode the .tags file from .data; None when no record has a tag."""
        pairs = rebuild_tags(self._read, self.header.name, self._entry())
        return encode_tags(pairs, self.header.first_seq) if pairs else None

    def seal(self, footer: bytes, tags: bytes | None) -> None:
        """Write the tags and the footer of a sealed segment; may be retried after an error."""
        assert not self._is_unfit
        if self._is_ragged:
            self._fs.truncate(self._data_fd, self.data_bytes)
            self._fs.truncate(self._index_fd, self.count * ENTRY_BYTES)
        if tags is not None:
            if self._tags_fd is not None:
                self._fs.close(self._tags_fd)
                self._tags_fd = None
            self._tags_fd = recreate_file(self._fs, self._tags_path)
            self._unsynced_paths |= {self._tags_path, self._directory}
            write_all(self._fs, self._tags_fd, tags, 0)
        self._unsynced_paths.add(self._index_path)
        write_all(self._fs, self._index_fd, footer, self.count * ENTRY_BYTES)

    def sync(self) -> None:
        fds = {
            self._data_path: self._data_fd,
            self._index_path: self._index_fd,
            self._tags_path: self._tags_fd,
        }
        for path in self.paths_to_sync:
            fd = fds.get(path)
            try:
                if fd is None:
                    self._fs.sync_dir(path)
                else:
                    self._fs.sync_data(fd)
            except OSError:
                self._is_unfit = True
                raise
            self._unsynced_paths.discard(path)

    def close(self) -> None:
        for fd in (self._data_fd, self._index_fd, self._tags_fd):
            if fd is not None:
                self._fs.close(fd)

    # Used by `open_active`.

    def begin(self) -> None:
        """Write the header of a new segment."""
        write_all(self._fs, self._data_fd, encode_segment_header(self.header), 0)
        self._unsynced_paths |= {self._data_path, self._index_path, self._directory, self._topics}

    def cut_to(self, entry: SegmentEntry) -> None:
        """Cut the files to the lengths that the snapshot names."""
        self.count, self.data_bytes = entry.count, entry.data_bytes
        size = self._fs.fstat(self._data_fd).size
        if size < entry.data_bytes:
            what = f".data has {size} of {entry.data_bytes} bytes"
            raise SegmentDamage(self.header.name, entry.first_seq, entry.last_seq, what)
        if size > entry.data_bytes:
            self._fs.truncate(self._data_fd, entry.data_bytes)
            self._unsynced_paths.add(self._data_path)
        index_bytes = entry.count * ENTRY_BYTES
        size = self._fs.fstat(self._index_fd).size
        if size < index_bytes:
            self._rebuild_index(f"it has {size} of {index_bytes} bytes")
        elif size > index_bytes:
            self._fs.truncate(self._index_fd, index_bytes)
            self._unsynced_paths.add(self._index_path)

    def _rebuild_index(self, why: str) -> bytes:
        """Rebuild the index from .data, write it, and return its entries."""
        logger.warning("%s: rebuilt from .data: %s", self._index_path, why)
        name, entry = self.header.name, self._entry()
        index = rebuild_index(self._read, name, entry)
        if index.has_damage:
            raise SegmentDamage(name, entry.first_seq, entry.last_seq, f".idx and .data are damaged: {why}")
        entries = encode_entries(index.offsets, index.lengths, index.times_ms, index.flags)
        self._unsynced_paths |= {self._index_path, self._directory}
        write_all(self._fs, self._index_fd, entries, 0)
        return entries

    def _entry(self) -> SegmentEntry:
        """Return an entry with the fields that reading the file needs."""
        first_seq, generation = self.header.first_seq, self.header.generation
        return SegmentEntry(
            first_seq, self.count, generation, self.data_bytes, 0, 0, False, False, HOT, 0, 0, 0, 0
        )

    def _read(self, offset: int, size: int) -> bytes:
        return self._fs.pread(self._data_fd, size, offset)


def open_active(
    fs: Fs, paths: ShardPaths, header: SegmentHeader, entry: SegmentEntry | None
) -> SegmentWriter:
    """Open the active segment that a snapshot names with `entry`, or make a new one without.

    A file with the name of a new segment is a leftover of an unfinished checkpoint, and is removed.
    """
    data_path, index_path, tags_path = (
        os.path.join(paths.root, header.name.key(suffix)) for suffix in (DATA, INDEX, TAGS)
    )
    if entry is None:
        directory = os.path.dirname(data_path)
        if not exists(fs, directory):
            fs.make_dir(directory)
        data_fd = recreate_file(fs, data_path)
    else:
        data_fd = _open_data(fs, data_path, header, entry)
    index_fd: int | None = None
    try:
        if entry is None or not exists(fs, index_path):
            index_fd = recreate_file(fs, index_path)
        else:
            index_fd = fs.open_write(index_path)
        # A leftover of a seal that no snapshot names; the next seal may be of other records.
        if exists(fs, tags_path):
            fs.unlink(tags_path)
        writer = SegmentWriter(fs, paths, header, data_fd, index_fd)
        if entry is None:
            writer.begin()
        else:
            writer.cut_to(entry)
    except BaseException:
        for fd in (data_fd, index_fd):
            if fd is not None:
                with suppress(OSError):
                    fs.close(fd)
        raise
    return writer


def _open_data(fs: Fs, path: str, header: SegmentHeader, entry: SegmentEntry) -> int:
    assert not entry.is_sealed, "sealed files never change"
    assert (entry.first_seq, entry.generation) == (header.first_seq, header.generation)
    try:
        return fs.open_write(path)
    except FileNotFoundError:
        raise SegmentDamage(header.name, entry.first_seq, entry.last_seq, "its .data is missing") from None
