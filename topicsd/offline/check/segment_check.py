"""The check of one whole segment: its records, and its other files against them.

`.data` is authoritative. The index and the tags are rebuilt from it and compared with the files. The dead set
can only be compared with its own checksum and the counts in the snapshot: no other file records the deletes.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from topicsd.engine.checkpoint.segment_copy import live_totals
from topicsd.log.file_header import UnknownVersion
from topicsd.offline.table import path_text
from topicsd.segment.data_file import (
    Read,
    ScannedDamage,
    ScannedFrame,
    scan_data,
)
from topicsd.segment.dead_file import DeadDamage, dead_bytes, decode_dead, unpack_marks
from topicsd.segment.entry import COLD, DATA, DEAD, HOT, INDEX, TAGS, SegmentEntry, SegmentName
from topicsd.segment.index_file import ENTRY_BYTES, FOOTER_BYTES, IndexDamage, SegmentIndex, decode_index
from topicsd.segment.objects import SegmentObjects
from topicsd.segment.rebuild import IndexBuilder
from topicsd.segment.store import LocalStore
from topicsd.segment.tags_file import TagsDamage, TagsReader, tags_of
from topicsd.store.object_store import StoreRefused, StoreUnavailable


class SegmentFiles(NamedTuple):
    """The places that hold the segment files of a shard."""

    hot: LocalStore
    cold: LocalStore | None
    """The folder into which an earlier version moved segments."""
    objects: SegmentObjects | None = None

    def place_of(
        self, name: SegmentName, entry: SegmentEntry, suffix: str
    ) -> tuple[LocalStore | SegmentObjects, str] | None:
        """Return the place that has the file, and its key there: hot first, as a server asks, or None.

        A crash may have left a copy in both. Raises StoreUnavailable or StoreRefused.
        """
        for store in (self.hot, self.cold):
            if store is not None and store.exists(name.key(suffix)):
                return store, name.key(suffix)
        key = entry.object_stem + suffix
        if entry.object_stem and suffix != DEAD and self.objects is not None and self.objects.exists(key):
            return self.objects, key
        return None

    def read(self, name: SegmentName, entry: SegmentEntry, suffix: str) -> Read | None:
        """Return a function that reads one file of a segment, or None when no place has it."""
        place = self.place_of(name, entry, suffix)
        return None if place is None else partial(place[0].read_range, place[1])

    def size(self, name: SegmentName, entry: SegmentEntry, suffix: str) -> int:
        place = self.place_of(name, entry, suffix)
        return 0 if place is None else place[0].size(place[1])

    def missing(self, name: SegmentName, entry: SegmentEntry, suffix: str) -> str:
        """Return a message with the paths searched; a segment recorded as hot may have moved since."""
        paths = [
            path_text(store.path_of(name.key(suffix))) for store in (self.hot, self.cold) if store is not None
        ]
        if entry.object_stem and suffix != DEAD:
            if self.objects is None:
                return "the file is missing: it is in an object store, whose URL is unknown"
            url = path_text(self.objects.path_of(entry.object_stem + suffix))
            return f"the file is missing: neither {paths[0]} nor {url} exists"
        if entry.tier == COLD and self.cold is None:
            return "the file is missing: it is in the cold directory, whose path is unknown"
        if self.cold is None or suffix == DEAD:
            return f"the file is missing: {paths[0]} does not exist"
        if entry.tier == COLD:
            return f"the file is missing: {paths[1]} does not exist; the cold directory may not be mounted"
        text = f"the file is missing: neither {paths[0]} nor {paths[1]} exists"
        return f"{text}; the cold directory may not be mounted"

    def close(self) -> None:
        self.hot.close()
        if self.cold is not None:
            self.cold.close()
        if self.objects is not None:
            self.objects.close()


class SegmentFacts(NamedTuple):
    """The faults of one segment, by file; an empty text means none."""

    name: SegmentName
    entry: SegmentEntry
    damage: list[ScannedDamage]
    """The damaged ranges of `.data`; one without a seq holds no record that is needed."""
    ends: list[int]
    """The end offset in `.data` of each damaged range."""
    in_data: str
    """A fault of `.data` other than damage."""
    in_index: str
    in_tags: str
    in_dead: str
    """Why the deletes are not known."""
    in_entry: str
    """The difference between the entry in the snapshot and the files."""
    marks: bytearray | None
    """One byte per record, 1 for dead; None when no record is dead or the deletes are not known."""
    is_missing: bool = False
    """Whether no tier has the `.data` file."""

    @property
    def data_file(self) -> str:
        """Return the file of the records, or the object of a segment that is only in the object store."""
        stem = self.entry.object_stem if self.entry.tier == COLD else ""
        return stem + DATA if stem else self.name.key(DATA)

    @property
    def is_fine(self) -> bool:
        return not (
            self.damage or self.in_data or self.in_index or self.in_tags or self.in_dead or self.in_entry
        )

    @property
    def lost(self) -> list[tuple[int, int]]:
        """Return the ranges of seqs that cannot be read, as first and last."""
        return [(one.first_seq, one.last_seq) for one in self.damage if one.first_seq <= one.last_seq]


class SegmentCheck:
    """The check of one segment against its entry in the snapshot."""

    def __init__(
        self,
        files: SegmentFiles,
        name: SegmentName,
        entry: SegmentEntry,
        known_marks: bytearray | None = None,
        reads_objects: bool = False,
    ) -> None:
        """Check the segment that a server reads, or with `reads_objects` its copy in the object store.

        `known_marks` replace those of the `.del` file.
        """
        self._files = files
        self._reads_objects = reads_objects
        self._name = name
        self._entry = entry
        self._known_marks = known_marks
        self._damage: list[ScannedDamage] = []
        self._ends: list[int] = []
        self.record_count = 0

    def run(self, earliest_seq: int) -> SegmentFacts:
        """Read the whole segment and return its faults.

        `earliest_seq` is that of the topic: records before it are not live.
        """
        try:
            facts = self._run(earliest_seq)
            if not facts.damage or self._reads_objects or not self._has_objects():
                return facts
            other = SegmentCheck(self._files, self._name, self._entry, reads_objects=True)
            copy = other.run(earliest_seq)
            what = "the local copy is damaged, and the object store has the segment whole"
            return facts if copy.damage else copy._replace(in_data=what)
        except (StoreUnavailable, StoreRefused) as error:
            what = f"the file is not checked: the object store does not answer: {error}"
            return self._missing_facts(what, *self._check_dead())

    def fault_of_objects(self, earliest_seq: int) -> str:
        """Check the objects of a segment whose records are local too; return their first fault, or "".

        Raises StoreUnavailable or StoreRefused.
        """
        objects, stem = self._files.objects, self._entry.object_stem
        if not stem or objects is None or not self._files.hot.exists(self._name.key(DATA)):
            return ""
        for suffix in (DATA, INDEX, TAGS) if self._entry.has_tags else (DATA, INDEX):
            if not objects.exists(stem + suffix):
                return f"{objects.path_of(stem + suffix)} is missing: {self._only_copy('a server keeps it')}"
        copy = SegmentCheck(self._files, self._name, self._entry, self._known_marks, reads_objects=True)
        facts = copy._run(earliest_seq)
        in_data = [
            f"at offset {offset}: {damage.what}"
            for damage, offset in zip(facts.damage, facts.ends, strict=True)
        ]
        faults = ((DATA, next(iter(in_data), facts.in_data)), (INDEX, facts.in_index), (TAGS, facts.in_tags))
        advice = self._only_copy("delete the object, so that a server keeps it")
        return next(
            (f"{objects.path_of(stem + suffix)}: {what}: {advice}" for suffix, what in faults if what), ""
        )

    def _only_copy(self, if_hot: str) -> str:
        """Return what to do about a local copy whose objects are not whole.

        A server that drops the local copy of a hot segment first looks for its object. That of a cold one is
        only left for an older snapshot.
        """
        is_hot = self._entry.tier == HOT
        local = path_text(self._files.hot.path_of(self._name.key(DATA)))
        advice = if_hot if is_hot else f"copy {local} and its neighbours there before a server drops them"
        return f"the local copy is the only whole one: {advice}"

    def _has_objects(self) -> bool:
        objects, stem = self._files.objects, self._entry.object_stem
        return stem != "" and objects is not None and objects.exists(stem + DATA)

    def _read(self, suffix: str) -> Read | None:
        if self._reads_objects and suffix != DEAD:
            assert self._files.objects is not None
            return partial(self._files.objects.read_range, self._entry.object_stem + suffix)
        return self._files.read(self._name, self._entry, suffix)

    def _size(self, suffix: str) -> int:
        if self._reads_objects and suffix != DEAD:
            assert self._files.objects is not None
            return self._files.objects.size(self._entry.object_stem + suffix)
        return self._files.size(self._name, self._entry, suffix)

    def _missing_facts(self, what: str, dead: str, marks: bytearray | None) -> SegmentFacts:
        name, entry = self._name, self._entry
        damage = [ScannedDamage(entry.first_seq, entry.last_seq, 0, what)]
        return SegmentFacts(name, entry, damage, [0], "", "", "", dead, "", marks, is_missing=True)

    def _run(self, earliest_seq: int) -> SegmentFacts:
        name, entry = self._name, self._entry
        dead, marks = self._check_dead()
        read = self._read(DATA)
        if read is None:
            return self._missing_facts(self._files.missing(name, entry, DATA), dead, marks)
        index, tags = self._scan(read)
        is_whole = not self._damage
        totals = ""
        if is_whole and not dead:
            totals = self._check_totals(index, marks, earliest_seq)
        return SegmentFacts(
            name,
            entry,
            self._damage,
            [*self._ends, *[entry.data_bytes] * (len(self._damage) - len(self._ends))],
            self._check_data(),
            self._check_index(index if is_whole else None),
            self._check_tags(tags if is_whole else None, marks, earliest_seq),
            dead,
            totals,
            marks,
        )

    def marks(self) -> bytearray | None:
        """Return one byte per record, 1 for dead; None when none is dead or it is not known."""
        return self._check_dead()[1]

    def rebuild(self) -> tuple[SegmentIndex, dict[bytes, list[int]]]:
        """Return the index and the tags, rebuilt from `.data`."""
        read = self._read(DATA)
        assert read is not None
        return self._scan(read)

    def _scan(self, read: Read) -> tuple[SegmentIndex, dict[bytes, list[int]]]:
        entry = self._entry
        builder, pairs = IndexBuilder(entry.first_seq), []
        for item in scan_data(read, self._name, entry):
            if isinstance(item, ScannedFrame):
                frame = item.frame
                self._ends += [item.offset] * (len(self._damage) - len(self._ends))
                builder.add(item.seq, item.offset, frame.size, frame.ts, frame.flags)
                pairs.append((item.seq, frame.tag))
                self.record_count += 1
            else:
                self._damage.append(item)
                builder.add_damage(item.last_seq)
        return builder.build(entry.last_seq), tags_of(pairs)

    def _check_data(self) -> str:
        """Check the size. The writer that the header names may be another shard: topics move."""
        entry = self._entry
        size = self._size(DATA)
        if entry.is_sealed and size > entry.data_bytes:
            return f"it has {size - entry.data_bytes} more bytes than the snapshot records"
        return ""

    def _check_index(self, rebuilt: SegmentIndex | None) -> str:
        """Compare the index with `rebuilt`, the one made from `.data`; None skips the comparison."""
        entry = self._entry
        read = self._read(INDEX)
        if read is None:
            return self._files.missing(self._name, entry, INDEX)
        size = entry.count * ENTRY_BYTES + FOOTER_BYTES * entry.is_sealed
        try:
            index = decode_index(read(0, size + 1), entry.first_seq, entry.count, entry.is_sealed)
        except (IndexDamage, OSError) as damage:
            return str(damage)
        if rebuilt is None:
            return ""
        for column in ("offsets", "lengths", "times_ms", "flags"):
            if getattr(index, column) != getattr(rebuilt, column):
                return f"its {column.removesuffix('_ms')} differ from those in .data"
        return ""

    def _check_tags(
        self, rebuilt: dict[bytes, list[int]] | None, marks: bytearray | None, earliest_seq: int
    ) -> str:
        """Compare the tags with `rebuilt`, those of `.data`; tags of dead records may be missing."""
        entry = self._entry
        if not entry.has_tags:
            return "records have tags, but the file is missing" if entry.is_sealed and rebuilt else ""
        read = self._read(TAGS)
        if read is None:
            return self._files.missing(self._name, entry, TAGS)
        try:
            reader = TagsReader(read, self._size(TAGS))
            tags = dict(reader.all_seqs())
        except (TagsDamage, OSError) as damage:
            return str(damage)
        if reader.first_seq != entry.first_seq:
            return f"it begins at seq {reader.first_seq}, not at {entry.first_seq}"
        if rebuilt is None or tags == rebuilt:
            return ""
        pairs = {(seq, tag) for tag, seqs in tags.items() for seq in seqs}
        all_pairs = {(seq, tag) for tag, seqs in rebuilt.items() for seq in seqs}
        for seq, _ in sorted(pairs - all_pairs):
            return f"it has a tag of seq {seq} that .data does not have"
        for seq, _ in sorted(all_pairs - pairs):
            if seq >= earliest_seq and (marks is None or not marks[seq - entry.first_seq]):
                return f"the tag of seq {seq} is missing"
        return ""

    def _check_dead(self) -> tuple[str, bytearray | None]:
        """Return the fault of the dead set, and its marks."""
        entry = self._entry
        if not entry.dead_count or self._known_marks is not None:
            return "", self._known_marks
        read = self._read(DEAD)
        if read is None:
            return self._files.missing(self._name, entry, DEAD), None
        try:
            # The file may be for a longer segment, when a later checkpoint was interrupted.
            size = max(self._size(DEAD), dead_bytes(entry.count))
            dead_set = decode_dead(read(0, size), entry.first_seq, entry.count)
        except (DeadDamage, UnknownVersion, OSError) as damage:
            return str(damage), None
        if dead_set.dead_count < entry.dead_count:
            expected = f"the snapshot records {entry.dead_count}"
            return f"it has {dead_set.dead_count} dead records, but {expected}", None
        return "", unpack_marks(dead_set.bitmap, entry.count)

    def _check_totals(self, index: SegmentIndex, marks: bytearray | None, earliest_seq: int) -> str:
        entry = self._entry
        if marks is not None and marks.count(1) != entry.dead_count:
            return ""  # An interrupted checkpoint wrote the dead set; a start counts again.
        totals = live_totals(index.lengths, marks, earliest_seq - entry.first_seq)
        if totals != (entry.live_count, entry.live_bytes):
            expected = f"{entry.live_count} live records of {entry.live_bytes} bytes"
            return f"the snapshot records {expected}, the files have {totals[0]} of {totals[1]} bytes"
        times_ms = (index.times_ms[0], index.times_ms[-1])
        if not entry.generation and times_ms != (entry.first_ts, entry.last_ts):
            return "the times of its first and last record differ from those in the snapshot"
        return ""
