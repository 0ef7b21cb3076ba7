"""The rewrite of a damaged segment: its good records are written as the next generation.

A compaction treats dead records in the same way: seqs do not change, and the index entry of a missing record
has length 0 and is marked dead. The topic keeps its segments, and a lost range in the topic's entry says
which of the missing records were lost and not deleted. No start reads the new files before a snapshot names
them. The old files are kept, because the old snapshot still names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from topicsd.disk.fs import Fs
from topicsd.disk.layout import parse_segment_name
from topicsd.engine.checkpoint.segment_copy import live_totals
from topicsd.log.writer import Identity
from topicsd.offline.check.segment_check import SegmentFacts, SegmentFiles
from topicsd.segment.data_file import (
    SEGMENT_HEADER_BYTES,
    Read,
    ScannedFrame,
    SegmentHeader,
    encode_segment_header,
    scan_data,
)
from topicsd.segment.dead_file import encode_dead, pack_marks
from topicsd.segment.entry import DATA, DEAD, HOT, INDEX, TAGS, SegmentEntry
from topicsd.segment.index_file import encode_entries, encode_footer
from topicsd.segment.rebuild import IndexBuilder
from topicsd.segment.tags_file import encode_tags, tags_of


class GoodRecords(NamedTuple):
    """The good part of a segment: one byte per record, 1 for missing or dead, and the lost seqs."""

    dead: bytearray
    lost: list[tuple[int, int]]
    """The first and the last live seq of each damaged range."""

    def first_live(self, first_seq: int, earliest_seq: int) -> int | None:
        at = self.dead.find(0, max(0, earliest_seq - first_seq))
        return None if at < 0 else first_seq + at


def good_records(facts: SegmentFacts, earliest_seq: int) -> GoodRecords:
    """Return the good part of a segment, without reading it; unknown deletes count as live."""
    entry = facts.entry
    marks = bytearray(entry.count) if facts.marks is None else facts.marks
    dead, lost = bytearray(marks), []
    for first, last in facts.lost:
        alive = [seq for seq in range(max(first, earliest_seq), last + 1) if not marks[seq - entry.first_seq]]
        if alive:
            lost.append((alive[0], alive[-1]))
        dead[first - entry.first_seq : last + 1 - entry.first_seq] = b"\1" * (last + 1 - first)
    return GoodRecords(dead, lost)


def next_generation(fs: Fs, topic_dir: str, first_seq: int) -> int:
    """Return the lowest generation above those of all files of this segment."""
    parsed = (parse_segment_name(name) for name in fs.list_dir(topic_dir))
    return 1 + max((one[1] for one in parsed if one is not None and one[0] == first_seq), default=0)


def rewrite_segment(
    files: SegmentFiles,
    identity: Identity,
    facts: SegmentFacts,
    good: GoodRecords,
    generation: int,
    earliest_seq: int,
    complete_to: int,
) -> SegmentEntry:
    """Write the good records as this generation and return the entry that replaces the old one."""
    name, entry = facts.name._replace(generation=generation), facts.entry
    read = files.read(facts.name, entry, DATA)
    assert read is not None
    builder = IndexBuilder(entry.first_seq)
    spans: list[tuple[int, int]] = []
    pairs: list[tuple[int, bytes]] = []
    end = SEGMENT_HEADER_BYTES
    for item in scan_data(read, facts.name, entry):
        if not isinstance(item, ScannedFrame) or good.dead[item.seq - entry.first_seq]:
            continue
        frame = item.frame
        builder.add(item.seq, end, frame.size, frame.ts, frame.flags)
        spans.append((item.offset, frame.size))
        pairs.append((item.seq, frame.tag))
        end += frame.size
    index, tags = builder.build(entry.last_seq), tags_of(pairs)
    header = encode_segment_header(SegmentHeader(identity.shard, identity.instance, *name))
    files.hot.put(name.key(DATA), _Stream(header, read, spans).read, end)
    entries = encode_entries(index.offsets, index.lengths, index.times_ms, index.flags)
    contents = {INDEX: entries + encode_footer(entries)}
    if tags:
        contents[TAGS] = encode_tags(tags, entry.first_seq)
    dead_count = good.dead.count(1)
    if dead_count:
        contents[DEAD] = encode_dead(entry.first_seq, entry.count, pack_marks(good.dead), complete_to)
    for suffix, content in contents.items():
        files.hot.put(name.key(suffix), _slice_of(content), len(content))
    live_count, live_bytes = live_totals(index.lengths, good.dead, earliest_seq - entry.first_seq)
    return msgspec.structs.replace(
        entry,
        generation=generation,
        data_bytes=end,
        first_ts=index.times_ms[0],
        last_ts=index.times_ms[-1],
        is_sealed=True,
        has_tags=bool(tags),
        tier=HOT,
        object_stem="",
        live_count=live_count,
        live_bytes=live_bytes,
        dead_count=dead_count,
    )


class _Stream:
    """A header followed by spans of another file, read in order by a store."""

    def __init__(self, header: bytes, read: Read, spans: list[tuple[int, int]]) -> None:
        self._parts = self._all(header, read, spans)
        self._rest = b""

    def read(self, offset: int, size: int) -> bytes:
        if not self._rest:
            self._rest = next(self._parts, b"")
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def _all(self, header: bytes, read: Read, spans: list[tuple[int, int]]) -> Iterator[bytes]:
        yield header
        for offset, size in spans:
            yield read(offset, size)


def _slice_of(data: bytes) -> Read:
    return lambda offset, size: data[offset : offset + size]
