"""Where an adopting shard gets the segment files of a bundle: from another directory, by link or copy.

The files of a sealed segment never change, so that a link is as good as a copy. The tail of a bundle that was
gathered apart is in no directory, and comes with the bundle. A tail that was sealed in its directory must not
be linked while that shard may still crash: it would open the segment as an active one again, and append to it
in place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, Protocol

from topicsd.disk.atomic_replace import exists, recreate_file, write_all
from topicsd.disk.fs import Fs
from topicsd.segment.entry import COLD, DATA, INDEX, TAGS, SegmentEntry, SegmentName

COPY_BYTES: Final = 1 << 20


class SegmentSource(Protocol):
    """Where the files of a bundle's segments come from."""

    def stays(self, entry: SegmentEntry) -> bool:
        """Return whether the segment stays where it is, because the adopting shard reads it there."""
        ...

    def fetch(self, name: SegmentName, entry: SegmentEntry, path: str) -> list[str]:
        """Put the `.data`, `.idx` and `.tags` files at a path without suffix, on the disk thread.

        Return the files whose bytes are to be synced: a link to a synced file needs no sync of its own.
        """
        ...


def suffixes_of(entry: SegmentEntry) -> tuple[str, ...]:
    """Return the suffixes of the immutable files that a shard has of a sealed segment.

    `.data` of a segment in the object store stays there.
    """
    data = () if is_in_store(entry) else (DATA,)
    return (*data, INDEX, TAGS) if entry.has_tags else (*data, INDEX)


def is_in_store(entry: SegmentEntry) -> bool:
    return entry.tier == COLD and entry.object_stem != ""


class DirectorySource:
    """Directories with the segments of another shard: its own, its cold one, one with copies."""

    def __init__(self, fs: Fs, *roots: str, links: bool = True) -> None:
        """Fetch each segment from the first root that has it.

        Files are linked where the file system can; without `links` all are copied.
        """
        self._fs = fs
        self._roots = roots
        self._links = links

    def stays(self, entry: SegmentEntry) -> bool:
        return entry.tier == COLD and entry.object_stem != ""

    def fetch(self, name: SegmentName, entry: SegmentEntry, path: str) -> list[str]:
        root = next((one for one in self._roots if self._has(one, name)), self._roots[0])
        copied = []
        for suffix in suffixes_of(entry):
            source, target = os.path.join(root, name.key(suffix)), path + suffix
            if not (self._links and self._link(source, target)):
                _copy(self._fs, source, target)
                copied.append(target)
        return copied

    def _has(self, root: str, name: SegmentName) -> bool:
        return exists(self._fs, os.path.join(root, name.key(INDEX)))

    def _link(self, source: str, target: str) -> bool:
        try:
            self._fs.link(source, target)
        except FileNotFoundError:
            raise
        except OSError:
            return False
        return True


class TailSource:
    """The files of a tail that was gathered apart, and another source for all other segments."""

    def __init__(self, fs: Fs, tail: Mapping[str, bytes], others: SegmentSource) -> None:
        self._fs = fs
        self._tail = tail
        self._others = others

    def stays(self, entry: SegmentEntry) -> bool:
        return self._others.stays(entry)

    def fetch(self, name: SegmentName, entry: SegmentEntry, path: str) -> list[str]:
        if name.key(DATA) not in self._tail:
            return self._others.fetch(name, entry, path)
        written = []
        for suffix in suffixes_of(entry):
            fd = recreate_file(self._fs, path + suffix)
            try:
                write_all(self._fs, fd, self._tail[name.key(suffix)], 0)
            finally:
                self._fs.close(fd)
            written.append(path + suffix)
        return written


def _copy(fs: Fs, source: str, target: str) -> None:
    source_fd = fs.open_read(source)
    try:
        fd = recreate_file(fs, target)
        try:
            offset = 0
            while chunk := fs.pread(source_fd, COPY_BYTES, offset):
                write_all(fs, fd, chunk, offset)
                offset += len(chunk)
        finally:
            fs.close(fd)
    finally:
        fs.close(source_fd)
