"""A segment written as the checkpoint writes one, on a disk in memory, and what was written."""

from __future__ import annotations

from array import array
from itertools import accumulate
from random import Random

from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.fs import Fs
from topicsd.disk.layout import ShardPaths, make_segment_dirs
from topicsd.log.frame import FrameType, LogFrame, encode_frame, parse_frame
from topicsd.segment.data_file import SegmentHeader
from topicsd.segment.dead_file import encode_dead, pack_marks
from topicsd.segment.entry import DATA, DEAD, HOT, INDEX, TAGS, SegmentEntry, SegmentName
from topicsd.segment.index_file import encode_entries
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import LocalStore
from topicsd.segment.tags_file import encode_tags, tags_of
from topicsd.segment.writer import SegmentWriter, open_active

PATHS = ShardPaths("/data/shards/00")
COLD_ROOT = "/cold/shards/00"
INSTANCE = b"one-shard-------"
NAME = SegmentName(topic_id=0x0123456789ABCDEF, epoch=1024, first_seq=101, generation=0)
HEADER = SegmentHeader(0, INSTANCE, NAME.topic_id, NAME.epoch, NAME.first_seq, NAME.generation)
FIRST_TS = 1_700_000_000_000


def made_disk(**sizes: int) -> MemoryDisk:
    disk = MemoryDisk(traced=True, **sizes)
    disk.make_dirs(PATHS.root)
    make_segment_dirs(disk, PATHS)
    disk.make_dirs(COLD_ROOT)
    return disk


def some_frames(count: int, first_seq: int = NAME.first_seq, seed: int = 0) -> list[bytes]:
    """With and without tags, of many sizes."""
    rng = Random(seed)
    frames = []
    for number in range(count):
        tag = rng.choice((b"", b"all", f"order/{rng.randrange(9)}".encode(), f"one/{number}".encode()))
        frames.append(
            encode_frame(
                FrameType.APPEND,
                topic_id=NAME.topic_id,
                seq=first_seq + number,
                ts=FIRST_TS + 7 * number,
                tag=tag,
                payload=b'"%b"' % (b"x" * rng.randrange(60)),
                durable=rng.random() < 0.5,
            )
        )
    return frames


def parsed(frame: bytes) -> LogFrame:
    return parse_frame(frame, 0, len(frame))


def entries_of(frames: list[bytes], start: int) -> bytes:
    """The index entries of frames that stand one behind the other from `start`."""
    lengths = array("I", map(len, frames))
    places = array("I", [*accumulate(lengths, initial=start)][:-1])
    parsed_frames = [parsed(frame) for frame in frames]
    return encode_entries(
        places,
        lengths,
        array("Q", [one.ts for one in parsed_frames]),
        bytes(one.flags for one in parsed_frames),
    )


def append(writer: SegmentWriter, frames: list[bytes]) -> None:
    writer.append(b"".join(frames), entries_of(frames, writer.data_bytes))


def entry_of(
    writer: SegmentWriter, frames: list[bytes], *, sealed: bool, has_tags: bool = True
) -> SegmentEntry:
    return SegmentEntry(
        first_seq=writer.header.first_seq,
        count=writer.count,
        generation=writer.header.generation,
        data_bytes=writer.data_bytes,
        first_ts=parsed(frames[0]).ts,
        last_ts=parsed(frames[-1]).ts,
        is_sealed=sealed,
        has_tags=sealed and has_tags,
        tier=HOT,
        live_count=writer.count,
        live_bytes=sum(map(len, frames)),
        dead_count=0,
        since_ordinal=5000,
    )


class Written:
    """A sealed segment with all its files, or an active one; `dead` are the seqs in its dead set."""

    def __init__(
        self,
        count: int = 40,
        *,
        sealed: bool = True,
        dead: tuple[int, ...] = (),
        disk: MemoryDisk | None = None,
    ) -> None:
        self.disk = made_disk() if disk is None else disk
        self.fs: Fs = self.disk
        self.frames = some_frames(count)
        self.tags = tags_of((NAME.first_seq + at, parsed(frame).tag) for at, frame in enumerate(self.frames))
        self.writer = open_active(self.disk, PATHS, HEADER, None)
        append(self.writer, self.frames)
        if sealed:
            self.writer.seal(self.writer.footer(), encode_tags(self.tags, NAME.first_seq))
        self.writer.sync()
        self.writer.close()
        self.entry = entry_of(self.writer, self.frames, sealed=sealed)
        if dead:
            self.mark_dead(dead)
        self.hot = LocalStore(self.disk, PATHS.root)
        self.cold = LocalStore(self.disk, COLD_ROOT)
        self.reader = SegmentReader(self.hot, self.cold)

    def mark_dead(self, seqs: tuple[int, ...]) -> None:
        marks = bytearray(self.entry.count)
        for seq in seqs:
            marks[seq - NAME.first_seq] = 1
        data = encode_dead(NAME.first_seq, self.entry.count, pack_marks(marks), complete_to=6000)
        self.disk.write_file(self.path(DEAD), data)
        live = [len(frame) for frame, mark in zip(self.frames, marks, strict=True) if not mark]
        self.entry = replaced(self.entry, dead_count=len(seqs), live_count=len(live), live_bytes=sum(live))

    def path(self, suffix: str, root: str = PATHS.root) -> str:
        return f"{root}/{NAME.key(suffix)}"

    def files(self) -> dict[str, bytes]:
        return {
            suffix: self.disk.read_file(self.path(suffix))
            for suffix in (DATA, INDEX, TAGS, DEAD)
            if self.path(suffix) in self.disk.all_files()
        }

    def fresh_reader(self) -> SegmentReader:
        return SegmentReader(LocalStore(self.disk, PATHS.root), LocalStore(self.disk, COLD_ROOT))

    def read(self, first_seq: int, last_seq: int, reader: SegmentReader | None = None) -> list[bytes]:
        """The frames of these seqs, each checked whole; b"" for one that is not there any more."""
        reader = reader or self.reader
        index = reader.index(NAME, self.entry)
        data, start = reader.frames(NAME, self.entry, index, first_seq, last_seq)
        reader.check_frames(NAME, index, data, start, first_seq, last_seq)
        places = [index.place_of(seq) for seq in range(first_seq, last_seq + 1)]
        return [data[offset - start : offset - start + length] for offset, length in places]


def replaced(entry: SegmentEntry, **changes: object) -> SegmentEntry:
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return SegmentEntry(**{**fields, **changes})
