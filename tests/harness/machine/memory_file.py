"""The bytes of one file, twice: as reads see them (the page cache) and as the media holds them.

Promises: every sector (512 bytes) written since the last sync is kept in all its versions, and every change
of the size in order, so that `power_cut` can produce any outcome of them. A failed sync does what ext4 does:
the sectors count as clean and have not reached the media.

Both images end at the last byte that was ever written and are zeros from there to the size: a preallocated
megabyte costs nothing until it is used, and a disk is copied in microseconds.
"""

from __future__ import annotations

from collections.abc import Callable

SECTOR_BYTES = 512

# A sector that is written repeatedly keeps its first versions and the last one.
VERSIONS_MAX = 4

Buffer = bytes | bytearray | memoryview


class MemoryFile:
    __slots__ = (
        "cache",
        "dirty",
        "inode",
        "links",
        "media",
        "media_size",
        "opens",
        "size",
        "sizes",
        "unwritten",
    )

    def __init__(self, inode: int, content: bytes | bytearray = b"", size: int | None = None) -> None:
        """Create a file that is wholly on the media."""
        self.inode = inode
        self.links = 0
        self.opens = 0
        self.cache = bytearray(content)
        self.media = bytearray(content)
        self.size = self.media_size = len(content) if size is None else size
        # sector -> its (stamp, bytes) since the last sync, oldest first
        self.dirty: dict[int, list[tuple[int, bytes]]] = {}
        # (stamp, size) of each change of the size since the last sync, oldest first
        self.sizes: list[tuple[int, int]] = []
        # Sectors that differ between cache and media after a failed sync.
        self.unwritten: set[int] = set()

    def read(self, size: int, offset: int) -> bytes:
        end = min(offset + size, self.size)
        if end <= offset:
            return b""
        data = bytes(memoryview(self.cache)[offset:end])
        return data if len(data) == end - offset else data.ljust(end - offset, b"\0")

    def write(self, data: Buffer, offset: int, stamp: int) -> None:
        end = offset + len(data)
        if end == offset:
            return
        cache = self.cache
        if len(cache) < offset:
            cache.extend(bytes(offset - len(cache)))
        cache[offset:end] = data
        if end > self.size:
            self.size = end
            self.sizes.append((stamp, end))
        self._touch(offset // SECTOR_BYTES, (end - 1) // SECTOR_BYTES, stamp)

    def _touch(self, first: int, last: int, stamp: int) -> None:
        cache, dirty = self.cache, self.dirty
        for sector in range(first, last + 1):
            start = sector * SECTOR_BYTES
            version = (stamp, bytes(cache[start : start + SECTOR_BYTES]))
            versions = dirty.get(sector)
            if versions is None:
                dirty[sector] = [version]
            elif len(versions) < VERSIONS_MAX:
                versions.append(version)
            else:
                versions[-1] = version

    def resize(self, size: int, stamp: int) -> None:
        if size == self.size:
            return
        del self.cache[size:]
        self.size = size
        self.sizes.append((stamp, size))

    def shrinks(self, last_index: int | None = None) -> list[tuple[int, int]]:
        """Return the pending truncations, up to one of the changes of size."""
        sizes = []
        before = self.media_size
        for stamp, size in self.sizes[:last_index]:
            if size < before:
                sizes.append((stamp, size))
            before = size
        return sizes

    def sync(self) -> None:
        self._commit_size()
        for sector in self.dirty:
            self._write_back(sector)
        self.unwritten.difference_update(self.dirty)
        self.dirty.clear()
        del self.media[self.size :]

    def fail_sync(self, reached: Callable[[int], bool]) -> None:
        """Fail a sync: every dirty sector counts as clean; `reached` selects those on the media.

        The size stays pending, as a journal commits it with a later transaction; only a truncation that
        happened before the data must not be applied after it.
        """
        if self.shrinks():
            self._commit_size()
        for sector in self.dirty:
            if reached(sector):
                self._write_back(sector)
                self.unwritten.discard(sector)
            else:
                self.unwritten.add(sector)
        self.dirty.clear()

    def drop_cache(self) -> None:
        """Reload clean sectors from the media; they differ from it only after a failed sync."""
        if not self.unwritten:
            return
        fresh = bytearray(self.media)
        for _, size in self.shrinks():
            del fresh[size:]
        for sector in sorted(self.dirty):
            put_sector(fresh, sector, bytes(self.cache[sector * SECTOR_BYTES : (sector + 1) * SECTOR_BYTES]))
        del fresh[self.size :]
        self.cache = fresh
        self.unwritten.clear()

    def flip(self, offset: int, mask: int) -> None:
        """Flip bits of one byte in the cache and on the media."""
        assert offset < self.size
        assert 0 < mask < 256
        for image in (self.cache, self.media):
            if len(image) <= offset:
                image.extend(bytes(offset + 1 - len(image)))
            image[offset] ^= mask
        versions = self.dirty.get(offset // SECTOR_BYTES)
        if versions is not None:
            start = offset // SECTOR_BYTES * SECTOR_BYTES
            versions[-1] = (versions[-1][0], bytes(self.cache[start : start + SECTOR_BYTES]))

    def copied(self) -> MemoryFile:
        """Return a copy with everything that is pending, and no open descriptors."""
        twin = MemoryFile(self.inode)
        twin.cache = self.cache[:]
        twin.media = self.media[:]
        twin.size, twin.media_size = self.size, self.media_size
        twin.dirty = {sector: versions[:] for sector, versions in self.dirty.items()}
        twin.sizes = self.sizes[:]
        twin.unwritten = set(self.unwritten)
        twin.links = self.links
        return twin

    def _commit_size(self) -> None:
        for _, size in self.shrinks():
            del self.media[size:]
        self.media_size = self.size
        self.sizes.clear()

    def _write_back(self, sector: int) -> None:
        start = sector * SECTOR_BYTES
        put_sector(self.media, sector, bytes(self.cache[start : start + SECTOR_BYTES]))


def put_sector(image: bytearray, sector: int, content: bytes) -> None:
    """Set one sector of an image; short content is padded with zeros."""
    start = sector * SECTOR_BYTES
    if len(image) < start:
        image.extend(bytes(start - len(image)))
    image[start : start + SECTOR_BYTES] = content.ljust(SECTOR_BYTES, b"\0")
