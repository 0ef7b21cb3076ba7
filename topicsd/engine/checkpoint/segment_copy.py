"""The copy of captured records from the log into segments of their topic.

A `GrowingSegment` is the topic's active segment, or a new one after it. It is sealed when it is full or old
enough, and before a lost range, as the seqs of a segment have no gaps. Frames are copied unchanged; their
index is made from the columns of the runs.

A failure leaves bytes after the lengths that the last snapshot names, which are never read. An active segment
found to be damaged is sealed with its readable records, and the topic continues in a new one.
"""

from __future__ import annotations

import errno
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple

from shared.settings.settings import Settings
from topicsd.disk.atomic_replace import replace_file
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths
from topicsd.engine.checkpoint.capture import Capture
from topicsd.engine.jobs import BackgroundJob
from topicsd.engine.read.fill_page import READ_GAP_BYTES, READ_SPAN_BYTES
from topicsd.engine.read.page import Frames
from topicsd.engine.records.tag_index import TagIndex
from topicsd.engine.records.tail_run import TailRun, adjacent_ranges
from topicsd.engine.routes.copies import own_frames
from topicsd.log.files import LogFiles
from topicsd.log.frame import FLAG_TAG, HEADER, HEADER_BYTES
from topicsd.log.writer import Identity
from topicsd.segment.data_file import SEGMENT_HEADER_BYTES, SegmentHeader
from topicsd.segment.dead_file import encode_dead, pack_marks
from topicsd.segment.entry import DEAD, HOT, SegmentDamage, SegmentEntry, SegmentName
from topicsd.segment.index_file import encode_entries
from topicsd.segment.seal_damaged import seal_damaged
from topicsd.segment.tags_file import encode_tags
from topicsd.segment.writer import SegmentWriter, open_active

# The work of one turn of the event loop: well under a millisecond.
STEP_RECORDS = 512
STEP_BYTES = 256 << 10
_FLAGS_AT = 5

_unpack = HEADER.unpack_from


NO_AGE_MS: Final = 1 << 62


class SegmentBounds(NamedTuple):
    """The bounds at which a segment is sealed."""

    records_max: int
    bytes_max: int
    age_ms_max: int

    @classmethod
    def of(cls, settings: Settings) -> SegmentBounds:
        """Return the bounds from the settings. A maximum age of 0 means no maximum."""
        age_ms = settings.segment_max_age_ms or NO_AGE_MS
        return cls(settings.segment_max_events, settings.segment_max_bytes, age_ms)


class Files(NamedTuple):
    """The directory to write segments to, and the log to copy from."""

    fs: Fs
    paths: ShardPaths
    identity: Identity
    log: LogFiles


class GrowingSegment:
    """A segment that a checkpoint appends to, and its columns."""

    def __init__(self, name: SegmentName, since_ordinal: int) -> None:
        self.name = name
        self.first_seq = name.first_seq
        self.since_ordinal = since_ordinal
        self.offsets = array("Q")
        self.lengths = array("I")
        self.times_ms = array("Q")
        self.tags = TagIndex()
        self.data_bytes = SEGMENT_HEADER_BYTES
        self.has_tags = False
        self.is_sealed = False
        self.old_entry: SegmentEntry | None = None
        self.entry: SegmentEntry

    @classmethod
    def of_active(cls, active: TailRun) -> GrowingSegment:
        assert active.source is not None
        entry = active.source.entry
        segment = cls(active.source.name, entry.since_ordinal)
        segment.offsets, segment.lengths, segment.times_ms = (
            active.frame_positions[:],
            active.lengths[:],
            active.times_ms[:],
        )
        # Unknown tags are loaded from the file on demand, which yields those of the records in it, not those
        # of the records copied now. So the copied segment's tags have to be loaded again.
        segment.tags = TagIndex(is_unknown=True) if active.tags.is_unknown else active.tags
        segment.data_bytes = entry.data_bytes
        segment.old_entry = entry
        return segment

    @property
    def next_seq(self) -> int:
        return self.first_seq + len(self.lengths)

    def room(self, bounds: SegmentBounds) -> int:
        """Return how many more records fit, by the record bound. Bytes are bounded too."""
        if self.data_bytes >= bounds.bytes_max:
            return 0
        return bounds.records_max - len(self.lengths)

    def is_due(self, bounds: SegmentBounds, now_ms: int) -> bool:
        """Return whether the segment is to be sealed."""
        is_old = bool(self.times_ms) and now_ms - self.times_ms[0] >= bounds.age_ms_max
        return is_old or self.room(bounds) <= 0


class SegmentCopy:
    """The copy of one topic's captured records into segments."""

    def __init__(
        self, files: Files, bounds: SegmentBounds, captured: Capture, now_ms: int, seals_all: bool = False
    ) -> None:
        """Prepare a copy; with `seals_all` the last segment is sealed too, whatever its size and age."""
        self._seals_all = seals_all
        self._files = files
        self._bounds = bounds
        self._captured = captured
        self._now_ms = now_ms
        self._writer: SegmentWriter | None = None
        self._segment: GrowingSegment | None = None
        self.segments: list[GrowingSegment] = []
        self.damages: list[SegmentDamage] = []
        """Damage of active segments that were closed because of it."""

    def run(self) -> BackgroundJob[None]:
        """Copy all captured records."""
        captured = self._captured
        try:
            if captured.active is not None and self._has_work(captured.active):
                self._segment = GrowingSegment.of_active(captured.active)
            for tail in captured.tails:
                yield from self._copy_run(tail)
            segment = self._segment
            if segment is not None and (self._seals_all or segment.is_due(self._bounds, self._now_ms)):
                yield from self._seal()
            elif segment is not None:
                yield from self._end_segment()
        finally:
            if self._writer is not None:
                self._writer.close()

    def entries(self) -> list[SegmentEntry]:
        """Return the entries of all segments of the topic, once `run` is over."""
        active = self._captured.active
        grown = [segment.entry for segment in self.segments]
        if active is not None and not (self.segments and self.segments[0].first_seq == active.first_seq):
            assert active.source is not None
            grown.insert(0, active.source.entry)
        return self._captured.sealed + grown

    def _has_work(self, active: TailRun) -> bool:
        """Return whether the active segment grows, is old enough to seal, or has fewer live records."""
        assert active.source is not None
        entry = active.source.entry
        is_old = self._now_ms - entry.first_ts >= self._bounds.age_ms_max
        is_less = active.dead is not None or self._captured.entry.earliest_seq > entry.first_seq
        return bool(self._captured.tails) or is_old or is_less or self._seals_all

    def _copy_run(self, tail: TailRun) -> BackgroundJob[None]:
        seq = max(tail.first_seq, self._captured.entry.earliest_seq)
        while seq < tail.next_seq:
            segment = self._segment
            if segment is not None and (
                segment.next_seq != seq or segment.is_due(self._bounds, self._now_ms)
            ):
                yield from self._seal()
                segment = None
            if segment is None:
                segment = self._segment = self._begin(seq)
            if self._writer is None and not (yield from self._open(segment)):
                continue
            seq = yield from self._copy_step(segment, tail, seq)

    def _begin(self, first_seq: int) -> GrowingSegment:
        topic = self._captured.topic
        topic.has_files = True
        return GrowingSegment(SegmentName(topic.topic_id, topic.epoch, first_seq, 0), topic.complete_to)

    def _open(self, segment: GrowingSegment) -> BackgroundJob[bool]:
        """Open the segment for appending; return False if it was damaged and has been closed."""
        identity = self._files.identity
        header = SegmentHeader(identity.shard, identity.instance, *segment.name)

        def open_() -> None:
            self._writer = open_active(self._files.fs, self._files.paths, header, segment.old_entry)

        return (yield from self._run_or_close(segment, open_))

    def _run_or_close(self, segment: GrowingSegment, work: Callable[[], None]) -> BackgroundJob[bool]:
        """Do `work` on the thread; on damage close the segment and return False."""
        damages = yield partial(_return_damage, work)
        if not damages:
            return True
        if segment.old_entry is None:
            # A new segment: the log still has all its records for the next attempt.
            raise OSError(errno.EIO, str(damages[0]))
        self.damages += damages
        entry, _ = self._entry(segment)
        files = self._files
        segment.has_tags = yield partial(seal_damaged, files.fs, files.paths, segment.name, entry)
        segment.is_sealed = True
        yield from self._end_segment()
        return False

    def _copy_step(self, segment: GrowingSegment, tail: TailRun, seq: int) -> BackgroundJob[int]:
        """Copy some records from `seq` on; return the seq after them."""
        at = seq - tail.first_seq
        count = min(STEP_RECORDS, segment.room(self._bounds), tail.next_seq - seq)
        lengths = tail.lengths[at : at + count]
        room = min(STEP_BYTES, max(1, self._bounds.bytes_max - segment.data_bytes))
        count = max(1, bisect_right(list(accumulate(lengths)), room))
        del lengths[count:]
        spans = list(_spans(adjacent_ranges(tail.bytes_positions[at : at + count], lengths)))
        data = yield partial(_read_spans, self._files.log, spans)
        assert len(data) == sum(lengths), "the log returned fewer bytes than its index lists"
        starts = list(accumulate(lengths, initial=0))
        starts.pop()
        # Copies by reference are framed here, once.
        data = own_frames(tail, Frames(seq, data, starts, lengths), self._captured.topic).data
        offsets = array("I", [segment.data_bytes + start for start in starts])
        times_ms = tail.times_ms[at : at + count]
        flags = bytes([data[offset - segment.data_bytes + _FLAGS_AT] for offset in offsets])
        self._note_tags(segment, data, offsets, flags)
        writer = self._writer
        assert writer is not None
        yield partial(writer.append, data, encode_entries(offsets, lengths, times_ms, flags))
        segment.offsets.extend(iter(offsets))
        segment.lengths.extend(lengths)
        segment.times_ms.extend(times_ms)
        segment.data_bytes += len(data)
        return seq + count

    def _note_tags(self, segment: GrowingSegment, data: bytes, offsets: array[int], flags: bytes) -> None:
        if not any(flag & FLAG_TAG for flag in set(flags)):
            return
        base, seq = segment.data_bytes, segment.next_seq
        for number, flag in enumerate(flags):
            if flag & FLAG_TAG:
                at = offsets[number] - base
                _, _, _, _, _, _, node_len, tag_len, _ = _unpack(data, at)
                tag_at = at + HEADER_BYTES + node_len
                segment.tags.add(data[tag_at : tag_at + tag_len], seq + number)

    def _seal(self) -> BackgroundJob[None]:
        segment = self._segment
        assert segment is not None
        if self._writer is None and not (yield from self._open(segment)):
            return
        writer = self._writer
        assert writer is not None
        # The tags of an active segment belong to the live topic: deletes remove entries that a replay of
        # their frames has to find in the segment.
        is_running = segment.tags.is_unknown or segment.old_entry is not None
        tags = None if is_running else segment.tags.seqs_by_tag()
        if (yield from self._run_or_close(segment, partial(_seal, writer, tags, segment))):
            segment.is_sealed = True
            yield from self._end_segment()

    def _end_segment(self) -> BackgroundJob[None]:
        segment, writer = self._segment, self._writer
        assert segment is not None
        if writer is not None:
            yield writer.sync
            writer.close()
            self._writer = None
        segment.entry, marks = self._entry(segment)
        if marks is not None and (
            segment.old_entry is None or segment.entry.dead_count != segment.old_entry.dead_count
        ):
            yield partial(write_marks, self._files, segment.name, marks, self._captured.entry.complete_to)
        self.segments.append(segment)
        self._segment = None

    def _entry(self, segment: GrowingSegment) -> tuple[SegmentEntry, bytes | None]:
        """Return the segment's entry for the snapshot, and the marks of its dead records.

        Both are as of the capture.
        """
        marks = marks_of(segment.first_seq, segment.next_seq, self._captured)
        earliest = self._captured.entry.earliest_seq
        count, size = live_totals(segment.lengths, marks, earliest - segment.first_seq)
        entry = SegmentEntry(
            first_seq=segment.first_seq,
            count=len(segment.lengths),
            generation=segment.name.generation,
            data_bytes=segment.data_bytes,
            first_ts=segment.times_ms[0],
            last_ts=segment.times_ms[-1],
            is_sealed=segment.is_sealed,
            has_tags=segment.has_tags,
            tier=HOT,
            live_count=count,
            live_bytes=size,
            dead_count=marks.count(1) if marks is not None else 0,
            since_ordinal=segment.since_ordinal,
        )
        return entry, marks


def marks_of(first_seq: int, next_seq: int, captured: Capture) -> bytes | None:
    """Return the marks of a range of seqs, or None when no record is dead."""
    marks: bytearray | None = None
    for dead in captured.dead:
        low, high = max(first_seq, dead.first_seq), min(next_seq, dead.first_seq + len(dead.marks))
        part = dead.marks[low - dead.first_seq : high - dead.first_seq] if low < high else b""
        if part.count(1):
            marks = bytearray(next_seq - first_seq) if marks is None else marks
            marks[low - first_seq : high - first_seq] = part
    return None if marks is None else bytes(marks)


def live_totals(lengths: array[int], marks: bytes | bytearray | None, skipped: int) -> tuple[int, int]:
    """Return the count and bytes of live records after the first `skipped`."""
    skipped = max(0, skipped)
    lengths_after = lengths[skipped:]
    if marks is None:
        return len(lengths_after), sum(lengths_after)
    live = [length for length, mark in zip(lengths_after, marks[skipped:], strict=True) if not mark]
    return len(live), sum(live)


def write_marks(files: Files, name: SegmentName, marks: bytes, complete_to: int) -> None:
    """Write the whole dead set of a segment, on the disk thread."""
    data = encode_dead(name.first_seq, len(marks), pack_marks(marks), complete_to)
    replace_file(files.fs, f"{files.paths.root}/{name.key(DEAD)}", data)


def _seal(writer: SegmentWriter, pairs: dict[bytes, list[int]] | None, segment: GrowingSegment) -> None:
    if pairs is None:
        tags = writer.tags()
    else:
        # Entries removed from the live index meanwhile are of dead records; later seqs belong to another
        # segment.
        seqs = {
            tag: kept for tag, all_ in pairs.items() if (kept := [s for s in all_ if s < segment.next_seq])
        }
        tags = encode_tags(seqs, segment.first_seq) if seqs else None
    segment.has_tags = tags is not None
    writer.seal(writer.footer(), tags)


def _return_damage(work: Callable[[], None]) -> list[SegmentDamage]:
    """Return damage as a value, on the disk thread, which passes on disk errors only."""
    try:
        work()
    except SegmentDamage as damage:
        return [damage]
    return []


def _spans(ranges: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Group ranges of the log that are close to each other into one read each, in order."""
    span = ranges[:1]
    for first, last in ranges[1:]:
        start, end = span[0][0], span[-1][1]
        if first - end > READ_GAP_BYTES or first - start > READ_SPAN_BYTES or first < end:
            yield span
            span = []
        span.append((first, last))
    yield span


def _read_spans(log: LogFiles, spans: list[list[tuple[int, int]]]) -> bytes:
    """Return the frames, concatenated, on the disk thread."""
    return b"".join(part for span in spans for part in _cut(log, span))


def _cut(log: LogFiles, span: list[tuple[int, int]]) -> Iterator[bytes]:
    """Read one span, and yield its frames without the gaps."""
    start, end = span[0][0], span[-1][1]
    data = log.read(start, end)
    for first, last in span:
        yield data[first - start : last - start]
