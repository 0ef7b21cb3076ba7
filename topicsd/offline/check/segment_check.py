"""The check of one whole segment: its records, and its other files against them.

`.data` is authoritative. The index and the tags are rebuilt from it and compared with the files. The dead set
can only be compared with its own checksum and the counts in the snapshot: no other file records the deletes.
"""

from __future__ import annotations

from typing import NamedTuple

from topicsd.engine.checkpoint.segment_copy import live_totals
from topicsd.log.file_header import UnknownVersion
from topicsd.log.frame import FrameDamage
from topicsd.log.writer import Identity
from topicsd.offline.table import path_text
from topicsd.segment.data_file import (
    SEGMENT_HEADER_BYTES,
    Read,
    ScannedDamage,
    ScannedFrame,
    parse_segment_header,
    scan_data,
)
from topicsd.segment.dead_file import DeadDamage, dead_bytes, decode_dead, unpack_marks
from topicsd.segment.entry import COLD, DATA, DEAD, INDEX, TAGS, SegmentEntry, SegmentName
from topicsd.segment.index_file import ENTRY_BYTES, FOOTER_BYTES, IndexDamage, SegmentIndex, decode_index
from topicsd.segment.rebuild import IndexBuilder
from topicsd.segment.store import LocalStore
from topicsd.segment.tags_file import TagsDamage, TagsReader, tags_of


class SegmentFiles(NamedTuple):
    """The stores that hold the segment files of a shard."""

    hot: LocalStore
    cold: LocalStore | None

    def store_with(self, name: SegmentName, suffix: str) -> LocalStore | None:
        """Return the store that has the file: hot first, as a server asks, or None.

        A crash may have left a copy in both.
        """
        for store in (self.hot, self.cold):
            if store is not None and store.exists(name.key(suffix)):
                return store
        return None

    def read(self, name: SegmentName, suffix: str) -> Read | None:
        """Return a function that reads one file of a segment, or None when no tier has it."""
        store = self.store_with(name, suffix)
        if store is None:
            return None
        return lambda offset, size: store.read_range(name.key(suffix), offset, size)

    def size(self, name: SegmentName, suffix: str) -> int:
        store = self.store_with(name, suffix)
        return 0 if store is None else store.size(name.key(suffix))

    def missing(self, name: SegmentName, entry: SegmentEntry, suffix: str) -> str:
        """Return a message with the paths searched; a segment recorded as hot may have moved since."""
        paths = [
            path_text(store.path_of(name.key(suffix))) for store in (self.hot, self.cold) if store is not None
        ]
        if entry.tier == COLD and self.cold is None:
            return "the file is missing: it is in the cold directory, whose path is unknown"
        if self.cold is None:
            return f"the file is missing: {paths[0]} does not exist"
        if entry.tier == COLD:
            return f"the file is missing: {paths[1]} does not exist; the cold directory may not be mounted"
        text = f"the file is missing: neither {paths[0]} nor {paths[1]} exists"
        return f"{text}; the cold directory may not be mounted"

    def close(self) -> None:
        self.hot.close()
        if self.cold is not None:
            self.cold.close()


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
        self, files: SegmentFiles, identity: Identity, name: SegmentName, entry: SegmentEntry
    ) -> None:
        self._files = files
        self._identity = identity
        self._name = name
        self._entry = entry
        self._damage: list[ScannedDamage] = []
        self._ends: list[int] = []
        self.record_count = 0

    def run(self, earliest_seq: int) -> SegmentFacts:
        """Read the whole segment and return its faults.

        `earliest_seq` is that of the topic: records before it are not live.
        """
        name, entry = self._name, self._entry
        dead, marks = self._check_dead()
        read = self._files.read(name, DATA)
        if read is None:
            what = self._files.missing(name, entry, DATA)
            self._damage = [ScannedDamage(entry.first_seq, entry.last_seq, 0, what)]
            return SegmentFacts(name, entry, self._damage, [0], "", "", "", dead, "", marks, is_missing=True)
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
            self._check_data(read),
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
        read = self._files.read(self._name, DATA)
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

    def _check_data(self, read: Read) -> str:
        entry = self._entry
        size = self._files.size(self._name, DATA)
        if entry.is_sealed and size > entry.data_bytes:
            return f"it has {size - entry.data_bytes} more bytes than the snapshot records"
        try:
            header = parse_segment_header(read(0, SEGMENT_HEADER_BYTES))
        except (FrameDamage, OSError):
            return ""  # The scan has already reported it.
        if Identity(header.instance, header.shard) != self._identity:
            return f"it belongs to shard {header.shard:02d} of instance {header.instance.hex()}"
        return ""

    def _check_index(self, rebuilt: SegmentIndex | None) -> str:
        """Compare the index with `rebuilt`, the one made from `.data`; None skips the comparison."""
        entry = self._entry
        read = self._files.read(self._name, INDEX)
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
        read = self._files.read(self._name, TAGS)
        if read is None:
            return self._files.missing(self._name, entry, TAGS)
        try:
            reader = TagsReader(read, self._files.size(self._name, TAGS))
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
        if not entry.dead_count:
            return "", None
        read = self._files.read(self._name, DEAD)
        if read is None:
            return self._files.missing(self._name, entry, DEAD), None
        try:
            # The file may be for a longer segment, when a later checkpoint was interrupted.
            size = max(self._files.size(self._name, DEAD), dead_bytes(entry.count))
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
