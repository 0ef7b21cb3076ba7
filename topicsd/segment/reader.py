"""All blocking reads of active and sealed segments: finds the copy of a file and handles damage.

* The data directory is tried first, then the objects of the entry or, for a segment that an earlier version
  moved, the cold directory. The tier of the entry does not matter, so a crash between any two steps of
  tiering leaves the records readable. Dead sets are local; of two copies the one with more dead records is
  newer.
* A local file that is missing or damaged is read from the objects (`distrust`), without a report of damage.
* A store that does not answer is no damage: `StoreUnavailable` is raised, and a retry may succeed.
* A missing or damaged index or tags file is read from the objects, or rebuilt from .data, and written back if
  the segment is sealed. The files of an active segment are written only by the checkpoint.
* Damage in .data raises a `SegmentDamage` with the exact seqs.

Indexes, and the directories of tags, are cached up to a bound. Threads may call concurrently; a file that two
threads load at the same time is read twice, and one result is kept.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from topicsd.log.frame import FrameDamage
from topicsd.segment.data_file import SEGMENT_HEADER_BYTES, Read, check_frame, is_media_error
from topicsd.segment.dead_file import DeadDamage, DeadSet, decode_dead
from topicsd.segment.entry import (
    DATA,
    DEAD,
    INDEX,
    SUFFIXES,
    TAGS,
    SegmentDamage,
    SegmentEntry,
    SegmentName,
)
from topicsd.segment.index_file import (
    DAMAGED,
    ENTRY_BYTES,
    FOOTER_BYTES,
    IndexDamage,
    SegmentIndex,
    decode_index,
    encode_entries,
    encode_footer,
)
from topicsd.segment.objects import SegmentObjects
from topicsd.segment.rebuild import SalvagedTags, rebuild_index, rebuild_tags, salvage_tags
from topicsd.segment.store import SegmentStore
from topicsd.segment.tags_file import TagsDamage, TagsReader, encode_tags
from topicsd.store.object_store import StoreUnavailable

INDEX_CACHE_BYTES = 32 << 20
# More than a dead set can have: index and .data bound the number of records of a segment.
DEAD_BYTES_MAX = 1 << 20

logger = logging.getLogger("topicsd.segment")

CachedFile = SegmentIndex | TagsReader


class Copies(Protocol):
    """A place that holds files of segments by key."""

    def read_range(self, key: str, offset: int, size: int) -> bytes: ...

    def exists(self, key: str) -> bool: ...

    def size(self, key: str) -> int: ...


class SegmentReader:
    """Reads of a shard's segments in all their places; safe to call from several threads."""

    def __init__(
        self,
        hot: SegmentStore,
        cold: SegmentStore | None = None,
        objects: SegmentObjects | None = None,
        index_cache_bytes: int = INDEX_CACHE_BYTES,
    ) -> None:
        """Read from the data directory, the store of objects, and a cold directory of earlier versions."""
        self.hot = hot
        self._stores = [hot] if cold is None else [hot, cold]
        self._objects = objects
        self._cache_bytes_max = index_cache_bytes
        self._cached_bytes = 0
        self._cache: OrderedDict[tuple[SegmentName, str], CachedFile] = OrderedDict()
        self._lock = threading.Lock()
        self._distrusted: set[SegmentName] = set()
        """Exported segments whose local copy is damaged."""

    def cached_index(self, name: SegmentName) -> SegmentIndex | None:
        """Return the cached index, or None; never waits for the disk."""
        index = self._from_cache(name, INDEX)
        return index if isinstance(index, SegmentIndex) else None

    def index(self, name: SegmentName, entry: SegmentEntry, *, is_local: bool = False) -> SegmentIndex:
        """Return the index of the entry's records, with damaged records marked.

        With `is_local` it makes no request to a store, but raises `StoreUnavailable`: for the event loop.
        """
        index = self.cached_index(name)
        # An active segment grows: the cached index may be of an earlier entry.
        if index is None or index.count < entry.count:
            index = self.load_index(name, entry, is_local=is_local)
            self._add_to_cache(name, INDEX, index)
        return index

    def load_index(self, name: SegmentName, entry: SegmentEntry, *, is_local: bool = False) -> SegmentIndex:
        """Load the index from its file, bypassing the cache; rebuild it if missing or damaged."""
        size = entry.count * ENTRY_BYTES + FOOTER_BYTES * entry.is_sealed
        loss: Exception = FileNotFoundError(errno.ENOENT, "not in any tier", name.key(INDEX))
        for copies, key in self._places(name, entry, INDEX):
            is_object = copies not in self._stores
            if is_object and is_local:
                raise StoreUnavailable(errno.EAGAIN, "the index is only in the object store", key)
            try:
                # One extra byte detects a file that is too long.
                data = copies.read_range(key, 0, size + 1)
                index = decode_index(data, entry.first_seq, entry.count, entry.is_sealed)
                if index.data_end != entry.data_bytes:
                    raise IndexDamage(f"ends at {index.data_end} of the {entry.data_bytes} bytes of .data")
            except (IndexDamage, OSError) as damage:
                if isinstance(damage, OSError) and not _is_loss(damage):
                    raise
                # A missing file is the lesser news.
                loss = loss if isinstance(damage, FileNotFoundError) else damage
            else:
                if is_object:
                    self._restore(name, INDEX, data)
                return index
        self._raise_unless_lost(loss, name, INDEX)
        self._require_data(name, entry)
        index = rebuild_index(self._read_of(name, entry, DATA), name, entry)
        if entry.is_sealed and not index.has_damage:
            entries = encode_entries(index.offsets, index.lengths, index.times_ms, index.flags)
            self._write_back(name, entry, INDEX, entries + encode_footer(entries))
        return index

    def frames(
        self, name: SegmentName, entry: SegmentEntry, index: SegmentIndex, first_seq: int, last_seq: int
    ) -> tuple[bytes, int]:
        """Read the bytes from the first record to the end of the last; return them and their offset.

        The frames are not parsed here: the caller checks each frame with its topic and seq. A SegmentDamage
        names only the damaged seqs; the requested records before them can be read.
        """
        try:
            return self._frames(name, entry, index, first_seq, last_seq)
        except SegmentDamage:
            if not self.distrust(name, entry):
                raise
        return self._frames(name, entry, index, first_seq, last_seq)

    def _frames(
        self, name: SegmentName, entry: SegmentEntry, index: SegmentIndex, first_seq: int, last_seq: int
    ) -> tuple[bytes, int]:
        assert entry.first_seq <= first_seq <= last_seq < index.first_seq + index.count
        if index.has_damage:
            self._refuse_damaged(name, index, first_seq, last_seq)
        start, _ = index.place_of(first_seq)
        offset, length = index.place_of(last_seq)
        size = offset + length - start
        if size == 0:
            return b"", start
        try:
            data = self._read(name, entry, DATA, start, size)
            what = f"the file ends at {start + len(data)}"
        except OSError as error:
            if not _is_loss(error):
                raise
            data, what = b"", f"it cannot be read: {error.strerror}"
        if len(data) != size:
            data = self._read_each(name, entry, index, range(first_seq, last_seq + 1), what)
        return data, start

    def _refuse_damaged(self, name: SegmentName, index: SegmentIndex, first_seq: int, last_seq: int) -> None:
        base = index.first_seq
        at = index.flags.find(DAMAGED, first_seq - base, last_seq + 1 - base)
        if at >= 0:
            end = at
            while end < index.count and index.flags[end] == DAMAGED:
                end += 1
            raise SegmentDamage(name, base + at, base + end - 1, "its .data is damaged")

    def _read_each(
        self, name: SegmentName, entry: SegmentEntry, index: SegmentIndex, seqs: range, what: str
    ) -> bytes:
        """Read a range record by record; raise SegmentDamage for the first unreadable records."""
        frames: list[bytes] = []
        first_bad: int | None = None
        for seq in seqs:
            offset, length = index.place_of(seq)
            try:
                frame = self._read(name, entry, DATA, offset, length)
            except OSError as error:
                if not _is_loss(error):
                    raise
                frame = b""
            if first_bad is None:
                frames.append(frame)
                if len(frame) != length:
                    first_bad = seq
            elif length and len(frame) == length:
                raise SegmentDamage(name, first_bad, seq - 1, what)
        if first_bad is not None:
            raise SegmentDamage(name, first_bad, seqs[-1], what)
        return b"".join(frames)

    def find_tag(
        self, name: SegmentName, entry: SegmentEntry, tag: bytes, is_prefix: bool, below: int
    ) -> list[int]:
        """Return the seqs below `below` with the tag or prefix, ascending, dead records included."""
        if not entry.is_sealed:
            return self._find_in_data(name, entry, tag, is_prefix, below)
        return self.find_in_tags(name, entry, lambda tags: tags.find(tag, is_prefix, below))

    def find_in_tags(
        self, name: SegmentName, entry: SegmentEntry, find: Callable[[TagsReader], list[int]]
    ) -> list[int]:
        """Return what `find` finds in the tags of a sealed segment, which are rebuilt if they are damaged."""
        if not entry.has_tags:
            return []
        tags = self._from_cache(name, TAGS)
        try:
            if not isinstance(tags, TagsReader):
                tags = self._open_tags(name, entry)
                self._add_to_cache(name, TAGS, tags)
            return find(tags)
        except (TagsDamage, OSError) as damage:
            self._raise_unless_lost(damage, name, TAGS)
        return find(self._rebuilt_tags(name, entry))

    def salvage_tags(self, name: SegmentName, entry: SegmentEntry) -> SalvagedTags:
        """Read the tags of the intact records of a damaged segment, from the records themselves."""
        self._require_data(name, entry)
        return salvage_tags(self._read_of(name, entry, DATA), name, entry)

    def _open_tags(self, name: SegmentName, entry: SegmentEntry) -> TagsReader:
        for copies, key in self._places(name, entry, TAGS):
            try:
                size = copies.size(key)
            except FileNotFoundError:
                continue
            read: Read = partial(copies.read_range, key)
            if copies not in self._stores:
                data = read(0, size)
                is_restored = self._restore(name, TAGS, data)
                read = partial(self.hot.read_range, name.key(TAGS)) if is_restored else _read_from_bytes(data)
            tags = TagsReader(read, size)
            if tags.first_seq != entry.first_seq:
                raise TagsDamage(f"covers records from seq {tags.first_seq}")
            return tags
        raise FileNotFoundError(errno.ENOENT, "not in any tier", name.key(TAGS))

    def _raise_unless_lost(self, damage: Exception, name: SegmentName, suffix: str) -> None:
        """Raise errors that are not loss or damage of the file; log the others."""
        if isinstance(damage, OSError) and not _is_loss(damage):
            raise damage
        logger.warning("%s: rebuilt from .data: %s", name.key(suffix), damage)

    def _find_in_data(
        self, name: SegmentName, entry: SegmentEntry, tag: bytes, is_prefix: bool, below: int
    ) -> list[int]:
        self._require_data(name, entry)
        pairs = rebuild_tags(self._read_of(name, entry, DATA), name, entry)
        matching = (
            [segment_tag for segment_tag in pairs if segment_tag.startswith(tag)] if is_prefix else [tag]
        )
        return sorted(seq for one in matching for seq in pairs.get(one, ()) if seq < below)

    def _rebuilt_tags(self, name: SegmentName, entry: SegmentEntry) -> TagsReader:
        self._evict_from_cache(name, TAGS)
        self._require_data(name, entry)
        data = encode_tags(rebuild_tags(self._read_of(name, entry, DATA), name, entry), entry.first_seq)
        self._write_back(name, entry, TAGS, data)
        return TagsReader(_read_from_bytes(data), len(data))

    def dead_set(self, name: SegmentName, entry: SegmentEntry) -> DeadSet:
        """Return the dead set, with at least the entry's count of dead records.

        Raises FileNotFoundError when no tier has the file, and DeadDamage when every copy is damaged or has
        fewer dead records than the entry counts.
        """
        best: DeadSet | None = None
        failure: DeadDamage | OSError = FileNotFoundError(errno.ENOENT, "not in any tier", name.key(DEAD))
        for store in self._stores:
            # The checkpoint replaces the file by a rename, not through the store: drop the open descriptor.
            store.forget(name.key(DEAD))
            try:
                data = store.read_range(name.key(DEAD), 0, DEAD_BYTES_MAX)
                dead = decode_dead(data, entry.first_seq, entry.count)
            except FileNotFoundError:
                continue
            except OSError as error:
                if not _is_loss(error):
                    raise
                failure = DeadDamage(str(error))
            except DeadDamage as damage:
                failure = damage
            else:
                if best is None or dead.dead_count > best.dead_count:
                    best = dead
        if best is None:
            raise failure
        if best.dead_count < entry.dead_count:
            raise DeadDamage(f"has {best.dead_count} dead records, the snapshot counts {entry.dead_count}")
        return best

    def check_frames(
        self, name: SegmentName, index: SegmentIndex, data: bytes, start: int, first_seq: int, last_seq: int
    ) -> None:
        """Check that the bytes from `frames` match the index, and that every frame is whole."""
        for seq in range(first_seq, last_seq + 1):
            offset, length = index.place_of(seq)
            if length:
                try:
                    check_frame(data, offset - start, length, name.topic_id, seq)
                except FrameDamage as damage:
                    raise SegmentDamage(name, seq, seq, f"at {offset}: {damage.what}") from None

    def check_tags(self, name: SegmentName, entry: SegmentEntry) -> None:
        """Verify the tags file of a sealed segment, bypassing the cache; rebuild it if damaged."""
        if entry.has_tags:
            self._evict_from_cache(name, TAGS)
            try:
                self._open_tags(name, entry).check()
            except (TagsDamage, OSError) as damage:
                self._raise_unless_lost(damage, name, TAGS)
                self._rebuilt_tags(name, entry)

    def all_tags(self, name: SegmentName, entry: SegmentEntry) -> dict[bytes, list[int]]:
        """Return every tag of a sealed segment with its seqs."""
        if not entry.has_tags:
            return {}
        try:
            return dict(self._open_tags(name, entry).all_seqs())
        except (TagsDamage, OSError) as damage:
            self._raise_unless_lost(damage, name, TAGS)
        return dict(self._rebuilt_tags(name, entry).all_seqs())

    def header_bytes(self, name: SegmentName, entry: SegmentEntry) -> bytes:
        return self._read(name, entry, DATA, 0, SEGMENT_HEADER_BYTES)

    def distrust(self, name: SegmentName, entry: SegmentEntry) -> bool:
        """Read the segment from its objects from now on; return False when that changes nothing.

        Called when its local copy turned out to be damaged.
        """
        if not entry.object_stem or self._objects is None or name in self._distrusted:
            return False
        self._distrusted.add(name)
        self._evict_from_cache(name, INDEX)
        self._evict_from_cache(name, TAGS)
        logger.error("segment: %s: damaged, reading its copy in the object store", name.key(DATA))
        return True

    def is_distrusted(self, name: SegmentName) -> bool:
        return name in self._distrusted

    def forget(self, name: SegmentName) -> None:
        """Drop the cache and descriptors of a segment that was dropped, compacted or moved."""
        self._evict_from_cache(name, INDEX)
        self._evict_from_cache(name, TAGS)
        self._distrusted.discard(name)
        for store in self._stores:
            for suffix in SUFFIXES:
                store.forget(name.key(suffix))

    def close(self) -> None:
        with self._lock:
            self._cache.clear()
            self._cached_bytes = 0
        for store in self._stores:
            store.close()
        if self._objects is not None:
            self._objects.close()

    # -- tiers --

    def _places(self, name: SegmentName, entry: SegmentEntry, suffix: str) -> list[tuple[Copies, str]]:
        """Return where a file may be, with its key there, in the order of trust."""
        places: list[tuple[Copies, str]] = [(store, name.key(suffix)) for store in self._stores]
        if entry.object_stem:
            objects: Copies = _NO_STORE if self._objects is None else self._objects
            # An index is checked as a whole whenever it is read, and the event loop has no other one.
            at = 0 if name in self._distrusted and suffix != INDEX else 1
            places.insert(at, (objects, entry.object_stem + suffix))
        return places

    def _read(self, name: SegmentName, entry: SegmentEntry, suffix: str, offset: int, size: int) -> bytes:
        failure: OSError = FileNotFoundError(errno.ENOENT, "not in any tier", name.key(suffix))
        for copies, key in self._places(name, entry, suffix):
            try:
                return copies.read_range(key, offset, size)
            except FileNotFoundError:
                continue
            except OSError as error:
                if not is_media_error(error):
                    raise
                failure = error
        raise failure

    def _read_of(self, name: SegmentName, entry: SegmentEntry, suffix: str) -> Read:
        return partial(self._read, name, entry, suffix)

    def _require_data(self, name: SegmentName, entry: SegmentEntry) -> None:
        if not any(copies.exists(key) for copies, key in self._places(name, entry, DATA)):
            raise SegmentDamage(name, entry.first_seq, entry.last_seq, "its .data is missing")

    def _write_back(self, name: SegmentName, entry: SegmentEntry, suffix: str, data: bytes) -> None:
        """Write a rebuilt file back beside .data; after a failure the next read rebuilds it again.

        That of a segment in the object store is kept in the data directory: objects do not change.
        """
        try:
            beside = [store for store in self._stores if store.exists(name.key(DATA))]
            (beside or [self.hot])[0].put(name.key(suffix), _read_from_bytes(data), len(data))
        except OSError as error:
            logger.warning("%s: rebuilt file not written: %s", name.key(suffix), error)

    def _restore(self, name: SegmentName, suffix: str, data: bytes) -> bool:
        """Write a file that only the object store has into the data directory; return whether it is there.

        The data directory may be open for reading only, or full.
        """
        try:
            self.hot.put(name.key(suffix), _read_from_bytes(data), len(data))
        except OSError:
            return False
        return True

    # -- cache --

    def _from_cache(self, name: SegmentName, suffix: str) -> CachedFile | None:
        with self._lock:
            content = self._cache.get((name, suffix))
            if content is not None:
                self._cache.move_to_end((name, suffix))
            return content

    def _add_to_cache(self, name: SegmentName, suffix: str, content: CachedFile) -> None:
        with self._lock:
            self._drop((name, suffix))
            self._cache[name, suffix] = content
            self._cached_bytes += content.size_bytes
            while self._cached_bytes > self._cache_bytes_max and len(self._cache) > 1:
                self._drop(next(iter(self._cache)))

    def _evict_from_cache(self, name: SegmentName, suffix: str) -> None:
        with self._lock:
            self._drop((name, suffix))

    def _drop(self, key: tuple[SegmentName, str]) -> None:
        content = self._cache.pop(key, None)
        if content is not None:
            self._cached_bytes -= content.size_bytes


class _NoStore:
    """The place of objects while no store is configured: nothing is known to be lost."""

    def _refuse(self, key: str) -> StoreUnavailable:
        return StoreUnavailable(
            errno.ENODEV, "TOPICS_STORE_URL is not set, and the object is in a store", key
        )

    def read_range(self, key: str, offset: int, size: int) -> bytes:
        raise self._refuse(key)

    def exists(self, key: str) -> bool:
        raise self._refuse(key)

    def size(self, key: str) -> int:
        raise self._refuse(key)


_NO_STORE: Final = _NoStore()


def _is_loss(error: OSError) -> bool:
    return isinstance(error, FileNotFoundError) or is_media_error(error)


def _read_from_bytes(data: bytes) -> Read:
    return lambda offset, size: data[offset : offset + size]
