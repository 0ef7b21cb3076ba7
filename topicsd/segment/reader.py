"""All blocking reads of active and sealed segments: finds the tier of a file and handles damage.

* The hot tier is tried first, then the cold tier, regardless of the entry: a crash between any two steps of
  tiering leaves the records readable, and of two copies the hot one is read. Dead sets of the two tiers may
  differ; the one with more dead records is newer.
* A missing or damaged index or tags file is rebuilt from .data, and written back if the segment is sealed.
  The files of an active segment are written only by the checkpoint.
* Damage in .data raises a `SegmentDamage` with the exact seqs.

Indexes, and the directories of tags, are cached up to a bound. Threads may call concurrently; a file that two
threads load at the same time is read twice, and one result is kept.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections import OrderedDict
from functools import partial

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
from topicsd.segment.rebuild import rebuild_index, rebuild_tags
from topicsd.segment.store import SegmentStore
from topicsd.segment.tags_file import TagsDamage, TagsReader, encode_tags

INDEX_CACHE_BYTES = 32 << 20
# More than a dead set can have: index and .data bound the number of records of a segment.
DEAD_BYTES_MAX = 1 << 20

logger = logging.getLogger("topicsd.segment")

CachedFile = SegmentIndex | TagsReader


class SegmentReader:
    """Reads of a shard's segments in both tiers; safe to call from several threads."""

    def __init__(
        self, hot: SegmentStore, cold: SegmentStore | None, index_cache_bytes: int = INDEX_CACHE_BYTES
    ) -> None:
        self._stores = [hot] if cold is None else [hot, cold]
        self._cache_bytes_max = index_cache_bytes
        self._cached_bytes = 0
        self._cache: OrderedDict[tuple[SegmentName, str], CachedFile] = OrderedDict()
        self._lock = threading.Lock()

    def cached_index(self, name: SegmentName) -> SegmentIndex | None:
        """Return the cached index, or None; never waits for the disk."""
        index = self._from_cache(name, INDEX)
        return index if isinstance(index, SegmentIndex) else None

    def index(self, name: SegmentName, entry: SegmentEntry) -> SegmentIndex:
        """Return the index of the entry's records, with damaged records marked."""
        index = self.cached_index(name)
        # An active segment grows: the cached index may be of an earlier entry.
        if index is None or index.count < entry.count:
            index = self.load_index(name, entry)
            self._add_to_cache(name, INDEX, index)
        return index

    def load_index(self, name: SegmentName, entry: SegmentEntry) -> SegmentIndex:
        """Load the index from its file, bypassing the cache; rebuild it if missing or damaged."""
        size = entry.count * ENTRY_BYTES + FOOTER_BYTES * entry.is_sealed
        try:
            # One extra byte detects a file that is too long.
            data = self._read(name, INDEX, 0, size + 1)
            index = decode_index(data, entry.first_seq, entry.count, entry.is_sealed)
            if index.data_end != entry.data_bytes:
                raise IndexDamage(f"ends at {index.data_end} of the {entry.data_bytes} bytes of .data")
            return index
        except (IndexDamage, OSError) as damage:
            self._raise_unless_lost(damage, name, INDEX)
        self._require_data(name, entry)
        index = rebuild_index(self._read_of(name, DATA), name, entry)
        if entry.is_sealed and not index.has_damage:
            entries = encode_entries(index.offsets, index.lengths, index.times_ms, index.flags)
            self._write_back(name, INDEX, entries + encode_footer(entries))
        return index

    def frames(
        self, name: SegmentName, entry: SegmentEntry, index: SegmentIndex, first_seq: int, last_seq: int
    ) -> tuple[bytes, int]:
        """Read the bytes from the first record to the end of the last; return them and their offset.

        The frames are not parsed here: the caller checks each frame with its topic and seq. A SegmentDamage
        names only the damaged seqs; the requested records before them can be read.
        """
        assert entry.first_seq <= first_seq <= last_seq < index.first_seq + index.count
        if index.has_damage:
            self._refuse_damaged(name, index, first_seq, last_seq)
        start, _ = index.place_of(first_seq)
        offset, length = index.place_of(last_seq)
        size = offset + length - start
        if size == 0:
            return b"", start
        try:
            data = self._read(name, DATA, start, size)
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
                frame = self._read(name, DATA, offset, length)
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
        if not entry.has_tags:
            return []
        tags = self._from_cache(name, TAGS)
        try:
            if not isinstance(tags, TagsReader):
                tags = self._open_tags(name, entry)
                self._add_to_cache(name, TAGS, tags)
            return tags.find(tag, is_prefix, below)
        except (TagsDamage, OSError) as damage:
            self._raise_unless_lost(damage, name, TAGS)
        return self._rebuilt_tags(name, entry).find(tag, is_prefix, below)

    def _open_tags(self, name: SegmentName, entry: SegmentEntry) -> TagsReader:
        size = self._store_with(name, TAGS).size(name.key(TAGS))
        tags = TagsReader(self._read_of(name, TAGS), size)
        if tags.first_seq != entry.first_seq:
            raise TagsDamage(f"covers records from seq {tags.first_seq}")
        return tags

    def _raise_unless_lost(self, damage: Exception, name: SegmentName, suffix: str) -> None:
        """Raise errors that are not loss or damage of the file; log the others."""
        if isinstance(damage, OSError) and not _is_loss(damage):
            raise damage
        logger.warning("%s: rebuilt from .data: %s", name.key(suffix), damage)

    def _find_in_data(
        self, name: SegmentName, entry: SegmentEntry, tag: bytes, is_prefix: bool, below: int
    ) -> list[int]:
        self._require_data(name, entry)
        pairs = rebuild_tags(self._read_of(name, DATA), name, entry)
        matching = (
            [segment_tag for segment_tag in pairs if segment_tag.startswith(tag)] if is_prefix else [tag]
        )
        return sorted(seq for one in matching for seq in pairs.get(one, ()) if seq < below)

    def _rebuilt_tags(self, name: SegmentName, entry: SegmentEntry) -> TagsReader:
        self._evict_from_cache(name, TAGS)
        self._require_data(name, entry)
        data = encode_tags(rebuild_tags(self._read_of(name, DATA), name, entry), entry.first_seq)
        self._write_back(name, TAGS, data)
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

    def header_bytes(self, name: SegmentName) -> bytes:
        return self._read(name, DATA, 0, SEGMENT_HEADER_BYTES)

    def forget(self, name: SegmentName) -> None:
        """Drop the cache and descriptors of a segment that was dropped, compacted or moved."""
        self._evict_from_cache(name, INDEX)
        self._evict_from_cache(name, TAGS)
        for store in self._stores:
            for suffix in SUFFIXES:
                store.forget(name.key(suffix))

    def close(self) -> None:
        with self._lock:
            self._cache.clear()
            self._cached_bytes = 0
        for store in self._stores:
            store.close()

    # -- tiers --

    def _read(self, name: SegmentName, suffix: str, offset: int, size: int) -> bytes:
        key = name.key(suffix)
        for store in self._stores:
            try:
                return store.read_range(key, offset, size)
            except FileNotFoundError:
                continue
        raise FileNotFoundError(errno.ENOENT, "not in any tier", key)

    def _read_of(self, name: SegmentName, suffix: str) -> Read:
        return partial(self._read, name, suffix)

    def _store_with(self, name: SegmentName, suffix: str) -> SegmentStore:
        for store in self._stores:
            if store.exists(name.key(suffix)):
                return store
        raise FileNotFoundError(errno.ENOENT, "not in any tier", name.key(suffix))

    def _require_data(self, name: SegmentName, entry: SegmentEntry) -> None:
        try:
            self._store_with(name, DATA)
        except FileNotFoundError:
            raise SegmentDamage(name, entry.first_seq, entry.last_seq, "its .data is missing") from None

    def _write_back(self, name: SegmentName, suffix: str, data: bytes) -> None:
        """Write a rebuilt file back to its tier; after a failure the next read rebuilds it again."""
        try:
            self._store_with(name, DATA).put(name.key(suffix), _read_from_bytes(data), len(data))
        except OSError as error:
            logger.warning("%s: rebuilt file not written: %s", name.key(suffix), error)

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


def _is_loss(error: OSError) -> bool:
    return isinstance(error, FileNotFoundError) or is_media_error(error)


def _read_from_bytes(data: bytes) -> Read:
    return lambda offset, size: data[offset : offset + size]
