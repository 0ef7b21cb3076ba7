"""Measure the parts of segment reads and writes; run it alone, on an idle machine.

.venv/bin/python -m tests.unit.segment.segment_bench
"""

from __future__ import annotations

import tempfile
from array import array
from collections.abc import Callable
from itertools import accumulate
from timeit import Timer

from tests.unit.segment.written_segment import FIRST_TS, HEADER, NAME
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import ShardPaths, make_segment_dirs
from topicsd.log.frame import FrameType, encode_frame
from topicsd.segment.dead_file import pack_marks, unpack_marks
from topicsd.segment.entry import SegmentEntry
from topicsd.segment.index_file import decode_index, encode_entries, encode_footer
from topicsd.segment.reader import SegmentReader
from topicsd.segment.rebuild import rebuild_index
from topicsd.segment.store import LocalStore
from topicsd.segment.tags_file import TagsReader, encode_tags
from topicsd.segment.writer import open_active

COUNT = 10_000


def show(what: str, call: Callable[[], object], number: int = 200) -> None:
    best = min(Timer(call).repeat(5, number)) / number
    print(f"{what:55} {best * 1e6:10.1f} µs")


def show_reads(folder: str, frames: list[bytes], entries: bytes, tags: dict[bytes, list[int]]) -> None:
    fs, paths = RealFs(), ShardPaths(folder)
    make_segment_dirs(fs, paths)
    writer = open_active(fs, paths, HEADER, None)
    writer.append(b"".join(frames), entries)
    writer.seal(writer.footer(), encode_tags(tags, NAME.first_seq))
    writer.sync()
    writer.close()
    size = writer.data_bytes
    entry = SegmentEntry(
        NAME.first_seq, COUNT, 0, size, FIRST_TS, FIRST_TS, True, True, "hot", COUNT, size, 0, 1
    )
    store = LocalStore(fs, folder)
    reader = SegmentReader(store, None)
    index = reader.index(NAME, entry)
    key = NAME.key(".tags")
    tags_size = store.size(key)

    def cold_lookup() -> object:
        tags_reader = TagsReader(lambda offset, size: store.read_range(key, offset, size), tags_size)
        return tags_reader.find(b"order/004711", False, 1 << 60)

    def cold_index() -> object:
        reader.forget(NAME)
        return reader.index(NAME, entry)

    def frames_at(seq: int, count: int) -> object:
        return reader.frames(NAME, entry, index, seq, seq + count - 1)

    show("a lookup of a tag, cold", cold_lookup)
    show(
        "a lookup of a tag, directory at hand",
        lambda: reader.find_tag(NAME, entry, b"order/004711", False, 1 << 60),
    )
    show("a prefix of 100", lambda: reader.find_tag(NAME, entry, b"order/0047", True, 1 << 60))
    show("a prefix of all", lambda: reader.find_tag(NAME, entry, b"", True, 1 << 60), 20)
    show("read a sealed index from its file", cold_index)
    show("100 frames", lambda: frames_at(NAME.first_seq + 500, 100))
    data, start = reader.frames(NAME, entry, index, NAME.first_seq, NAME.first_seq + 99)
    show(
        "check 100 frames",
        lambda: reader.check_frames(NAME, index, data, start, NAME.first_seq, NAME.first_seq + 99),
    )
    show(
        "make an index again",
        lambda: rebuild_index(
            lambda offset, size: store.read_range(NAME.key(".data"), offset, size), NAME, entry
        ),
        3,
    )


def main() -> None:
    tags = {f"order/{number:06d}".encode(): [NAME.first_seq + number] for number in range(COUNT)}
    frames = [
        encode_frame(
            FrameType.APPEND, topic_id=NAME.topic_id, seq=seqs[0], ts=FIRST_TS, tag=tag, payload=b"x" * 120
        )
        for tag, seqs in tags.items()
    ]
    lengths = array("I", map(len, frames))
    offsets = array("I", [*accumulate(lengths, initial=110)][:-1])
    times_ms = array("Q", [FIRST_TS]) * COUNT
    flags = b"\1" * COUNT
    entries = encode_entries(offsets, lengths, times_ms, flags)
    sealed = entries + encode_footer(entries)
    show("encode 10,000 index entries", lambda: encode_entries(offsets, lengths, times_ms, flags))
    show("footer", lambda: encode_footer(entries))
    show("decode a sealed index", lambda: decode_index(sealed, NAME.first_seq, COUNT, True))
    show("decode an active index", lambda: decode_index(sealed, NAME.first_seq, COUNT, False))
    show("encode 10,000 different tags", lambda: encode_tags(tags, NAME.first_seq), 10)
    marks = bytearray(COUNT)
    marks[::3] = b"\1" * len(marks[::3])
    bitmap = pack_marks(marks)
    show("pack marks", lambda: pack_marks(marks))
    show("unpack marks", lambda: unpack_marks(bitmap, COUNT))
    with tempfile.TemporaryDirectory() as folder:
        show_reads(folder, frames, entries, tags)


if __name__ == "__main__":
    main()
