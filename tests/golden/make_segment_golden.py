"""The golden segments of the running formats, and what has to be found in them.

Run it once for each version of the segment formats that is released, and commit what it writes; never again
for the same version, whatever the code does by then::

    .venv/bin/python -m tests.golden.make_segment_golden

A sealed segment with tags and a dead set, what a rewrite made of it, and an active one.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.unit.segment.written_segment import HEADER, NAME, PATHS, Written, append, entry_of, some_frames
from topicsd.engine.upkeep.compaction import RewriteSource, rewrite_segments
from topicsd.log.frame import parse_frame
from topicsd.segment.data_file import VERSION
from topicsd.segment.dead_file import unpack_marks
from topicsd.segment.entry import DATA, SegmentEntry, SegmentName
from topicsd.segment.reader import SegmentReader
from topicsd.segment.writer import open_active

GOLDEN = Path(__file__).parent
TAGS = (b"all", b"order/3", b"none")
PREFIXES = (b"order/", b"")


def described(reader: SegmentReader, name: SegmentName, entry: SegmentEntry) -> dict[str, Any]:
    """All that can be asked of a segment, in types that JSON has."""
    index = reader.index(name, entry)
    data, start = reader.frames(name, entry, index, entry.first_seq, entry.last_seq)
    reader.check_frames(name, index, data, start, entry.first_seq, entry.last_seq)
    records = []
    for seq in range(entry.first_seq, entry.last_seq + 1):
        offset, length = index.place_of(seq)
        if length:
            frame = parse_frame(data, offset - start, offset - start + length)
            records.append([frame.seq, frame.ts, frame.flags, frame.tag.decode(), frame.payload.decode()])
        else:
            records.append([seq])
    dead = reader.dead_set(name, entry) if entry.dead_count else None
    return {
        "name": list(name),
        "entry": {field: getattr(entry, field) for field in entry.__struct_fields__},
        "records": records,
        "stamps": list(index.times_ms),
        "tags": {tag.decode(): reader.find_tag(name, entry, tag, False, 1 << 60) for tag in TAGS},
        "prefixes": {tag.decode(): reader.find_tag(name, entry, tag, True, 1 << 60) for tag in PREFIXES},
        "dead": dead and [list(unpack_marks(dead.bitmap, entry.count)), dead.complete_to],
    }


def main() -> int:
    target = GOLDEN / f"segment-format-{VERSION}"
    if target.exists():
        print(f"{target} is there: a released version stays as it was", file=sys.stderr)
        return 1
    dead_seqs = tuple(range(NAME.first_seq, NAME.first_seq + 40, 3))
    written = Written(dead=dead_seqs)
    marks = bytearray((NAME.first_seq + at) in dead_seqs for at in range(40))
    rewritten = rewrite_segments(
        written.reader, written.hot, [RewriteSource(NAME, written.entry, marks)], complete_to=7000
    )
    writer = open_active(written.disk, PATHS, HEADER._replace(first_seq=141), None)
    frames = some_frames(10, first_seq=141, seed=1)
    append(writer, frames)
    writer.sync()
    writer.close()
    segments = [
        (NAME, written.entry),
        (NAME._replace(generation=1), rewritten),
        (writer.header.name, entry_of(writer, frames, sealed=False)),
    ]
    for path in written.disk.all_files():
        copy = target / "data" / os.path.relpath(path, PATHS.root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(written.disk.read_file(path))
    assert (target / "data" / NAME.key(DATA)).exists()
    expected = [described(written.reader, name, entry) for name, entry in segments]
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
