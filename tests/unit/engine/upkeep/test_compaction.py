from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest

from tests.harness.machine.faults import PowerCut
from tests.unit.segment.written_segment import NAME, PATHS, Written, replaced
from topicsd.engine.upkeep.compaction import RewriteSource, is_worth_rewriting, rewrite_segments
from topicsd.segment.data_file import SEGMENT_HEADER_BYTES, parse_segment_header
from topicsd.segment.dead_file import unpack_marks
from topicsd.segment.entry import DATA, INDEX, TAGS, SegmentDamage, SegmentEntry
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import LocalStore

pytestmark = pytest.mark.usefixtures("quiet_log")

FIRST = NAME.first_seq
NEXT = NAME._replace(generation=1)
ALL = 1 << 60


def marks_of(count: int, dead: set[int]) -> bytearray:
    return bytearray(at in dead for at in range(count))


def rewritten(written: Written, dead: bytearray) -> SegmentEntry:
    return rewrite_segments(
        written.reader, written.hot, [RewriteSource(NAME, written.entry, dead)], complete_to=7000
    )


def assert_has(
    written: Written, entry: SegmentEntry, dead: bytearray, reader: SegmentReader | None = None
) -> None:
    """The rewritten segment answers as the old one did, but for what is dead."""
    reader = reader or written.fresh_reader()
    name = NAME._replace(generation=entry.generation)
    index = reader.index(name, entry)
    for first, last in ((FIRST, entry.last_seq), (FIRST + 3, FIRST + 11), (FIRST + 9, FIRST + 9)):
        data, start = reader.frames(name, entry, index, first, last)
        reader.check_frames(name, index, data, start, first, last)
        places = [index.place_of(seq) for seq in range(first, last + 1)]
        assert [data[offset - start : offset - start + length] for offset, length in places] == [
            b"" if dead[seq - FIRST] else written.frames[seq - FIRST] for seq in range(first, last + 1)
        ]
    for tag, seqs in written.tags.items():
        live = [seq for seq in seqs if not dead[seq - FIRST]]
        assert reader.find_tag(name, entry, tag, False, ALL) == live
    dead_set = reader.dead_set(name, entry)
    assert unpack_marks(dead_set.bitmap, entry.count) == dead
    assert dead_set.complete_to == 7000


@pytest.mark.parametrize("seed", range(8))
def test_a_rewritten_segment_has_what_was_alive_under_the_same_seqs(seed: int) -> None:
    rng = Random(seed)
    written = Written(count=60)
    before = written.files()
    dead = marks_of(60, {at for at in range(60) if rng.random() < (0.1, 0.5, 0.9)[seed % 3]} | {20} - {40})
    dead[40] = 0
    entry = rewritten(written, dead)
    assert_has(written, entry, dead)
    live = [frame for frame, is_dead in zip(written.frames, dead, strict=True) if not is_dead]
    assert (entry.first_seq, entry.count, entry.generation) == (FIRST, 60, 1)
    assert (entry.live_count, entry.live_bytes) == (len(live), sum(map(len, live)))
    assert entry.data_bytes == SEGMENT_HEADER_BYTES + entry.live_bytes
    assert entry.dead_count == sum(dead)
    assert not is_worth_rewriting(entry)
    assert written.files() == before
    header = parse_segment_header(written.disk.read_file(f"{PATHS.root}/{NEXT.key(DATA)}"))
    assert header.name == NEXT


def test_a_rewritten_segment_can_be_rewritten() -> None:
    written = Written(count=60)
    dead = marks_of(60, set(range(0, 60, 2)))
    entry = rewritten(written, dead)
    dead[1:30] = b"\1" * 29
    again = rewrite_segments(
        written.reader, written.hot, [RewriteSource(NEXT, entry, dead)], complete_to=7000
    )
    assert again.generation == 2
    assert_has(written, again, dead)


@pytest.mark.parametrize("suffix", [INDEX, TAGS])
def test_what_is_made_again_of_a_rewritten_segment_is_what_was_written(suffix: str) -> None:
    written = Written(count=60)
    for dead_set in ({0, 1, 2, 5, 58, 59}, set(range(50)), {30}):
        dead = marks_of(60, dead_set)
        entry = rewritten(written, dead)
        path = f"{PATHS.root}/{NEXT.key(suffix)}"
        before = written.disk.read_file(path)
        written.disk.unlink(path)
        assert_has(written, entry, dead)
        assert written.disk.read_file(path) == before


def test_a_segment_none_of_whose_live_records_has_a_tag_has_no_tags() -> None:
    written = Written(count=60)
    tagged = {seq - FIRST for seqs in written.tags.values() for seq in seqs}
    entry = rewritten(written, marks_of(60, tagged))
    assert not entry.has_tags
    assert f"{PATHS.root}/{NEXT.key(TAGS)}" not in written.disk.all_files()


def test_what_is_damaged_is_not_rewritten() -> None:
    for offset in (60, SEGMENT_HEADER_BYTES + 500):
        written = Written(count=60)
        written.disk.flip(written.path(DATA), offset, 1)
        before = written.disk.all_files()
        with pytest.raises(SegmentDamage) as damage:
            rewritten(written, marks_of(60, {59}))
        assert damage.value.name == NAME
        assert written.disk.all_files() == before


def test_less_than_half_alive_is_worth_a_rewrite() -> None:
    entry = replaced(Written().entry, data_bytes=SEGMENT_HEADER_BYTES + 1000, live_bytes=500)
    assert not is_worth_rewriting(entry)
    assert is_worth_rewriting(replaced(entry, live_bytes=499))
    assert not is_worth_rewriting(replaced(entry, live_bytes=0, live_count=0))
    assert not is_worth_rewriting(replaced(entry, live_bytes=499, is_sealed=False))


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["cut", "EIO", "ENOSPC"])
def test_whatever_ends_a_rewrite_the_old_segment_is_there_and_the_next_try_succeeds(ending: str) -> None:
    written = Written(count=12)
    dead = marks_of(12, {0, 3, 4, 8})
    calls = 0
    while True:
        disk = written.disk.after_reboot()
        fault = None
        if ending == "cut":
            disk.cut_power_after(calls)
        else:
            fault = disk.fail(nth=calls + 1, error=getattr(errno, ending))
        store = LocalStore(disk, PATHS.root)
        entry: SegmentEntry | None = None
        with suppress(PowerCut, OSError):
            entry = rewrite_segments(
                SegmentReader(store, None), store, [RewriteSource(NAME, written.entry, dead)], 7000
            )
        disk.clear_faults()
        for seed in range(4):
            after = disk.after_power_cut(Random(seed)) if ending == "cut" else disk.after_reboot()
            store = LocalStore(after, PATHS.root)
            reader = SegmentReader(store, None)
            assert written.read(FIRST, FIRST + 11, reader) == written.frames
            if entry is not None:
                assert_has(written, entry, dead, reader)
            again = rewrite_segments(reader, store, [RewriteSource(NAME, written.entry, dead)], 7000)
            assert_has(written, again, dead, reader)
        if not disk.is_gone and (fault is None or not fault.fired):
            break
        calls += 1
    assert calls > 12
