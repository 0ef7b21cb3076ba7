from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest

from tests.harness.machine.faults import PowerCut
from tests.harness.machine.memory_disk import MemoryDisk
from tests.unit.segment.written_segment import (
    HEADER,
    NAME,
    PATHS,
    Written,
    append,
    entries_of,
    entry_of,
    made_disk,
    parsed,
    replaced,
    some_frames,
)
from topicsd.segment.data_file import SEGMENT_HEADER_BYTES, parse_segment_header
from topicsd.segment.entry import DATA, INDEX, TAGS, SegmentDamage, SegmentEntry
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import LocalStore
from topicsd.segment.tags_file import encode_tags, tags_of
from topicsd.segment.writer import SegmentWriter, open_active

pytestmark = pytest.mark.usefixtures("quiet_log")

FIRST = NAME.first_seq
FRAMES = some_frames(60)


def path(suffix: str) -> str:
    return f"{PATHS.root}/{NAME.key(suffix)}"


def tags_for(frames: list[bytes]) -> bytes:
    return encode_tags(tags_of((FIRST + at, parsed(frame).tag) for at, frame in enumerate(frames)), FIRST)


def checkpoint(
    disk: MemoryDisk, frames: list[bytes], end: int, entry: SegmentEntry | None, *, seal: bool = False
) -> SegmentEntry:
    """One checkpoint's work on the segment: what the next snapshot may say of it."""
    writer = open_active(disk, PATHS, HEADER, entry)
    try:
        append(writer, frames[writer.count : end])
        if seal:
            writer.seal(writer.footer(), writer.tags())
        writer.sync()
        return entry_of(writer, frames[:end], sealed=seal)
    finally:
        if not disk.is_gone:
            writer.close()


def assert_reads(disk: MemoryDisk, entry: SegmentEntry, frames: list[bytes] = FRAMES) -> None:
    reader = SegmentReader(LocalStore(disk, PATHS.root), None)
    index = reader.index(NAME, entry)
    last = entry.last_seq
    data, start = reader.frames(NAME, entry, index, FIRST, last)
    reader.check_frames(NAME, index, data, start, FIRST, last)
    assert data == b"".join(frames[: entry.count])
    for tag, seqs in tags_of(
        (FIRST + at, parsed(frame).tag) for at, frame in enumerate(frames[: entry.count])
    ).items():
        assert reader.find_tag(NAME, entry, tag, False, 1 << 60) == seqs
    reader.close()


def files(disk: MemoryDisk) -> dict[str, bytes]:
    return {one: disk.read_file(one) for one in disk.all_files()}


def test_a_segment_grown_over_many_checkpoints_is_the_one_written_at_once() -> None:
    once, often = made_disk(), made_disk()
    checkpoint(once, FRAMES, 60, None, seal=True)
    entry = None
    for end in (1, 2, 20, 20, 59):
        entry = checkpoint(often, FRAMES, end, entry)
        assert_reads(often, entry)
    entry = checkpoint(often, FRAMES, 60, entry, seal=True)
    assert_reads(often, entry)
    assert files(once) == files(often)
    assert often.read_file(path(TAGS)) == tags_for(FRAMES)
    assert parse_segment_header(often.read_file(path(DATA))) == HEADER
    assert not often.open_files


def test_a_segment_without_tags_has_no_file_for_them() -> None:
    disk = made_disk()
    frames = [frame for frame in some_frames(20) if not parsed(frame).tag][:1]
    header = HEADER._replace(first_seq=parsed(frames[0]).seq)
    writer = open_active(disk, PATHS, header, None)
    append(writer, frames)
    assert writer.tags() is None
    writer.seal(writer.footer(), writer.tags())
    writer.sync()
    writer.close()
    assert sorted(one.rpartition(".")[2] for one in disk.all_files()) == ["data", "idx"]


@pytest.mark.parametrize("sealed", [True, False])
def test_what_a_checkpoint_left_that_did_not_end_is_cut(sealed: bool) -> None:
    disk = made_disk()
    entry = checkpoint(disk, FRAMES, 20, None)
    checkpoint(disk, some_frames(35, seed=9), 35, entry, seal=sealed)
    entry = checkpoint(disk, FRAMES, 25, entry)
    assert_reads(disk, entry)
    assert path(TAGS) not in disk.all_files()
    assert len(disk.read_file(path(DATA))) == entry.data_bytes
    assert len(disk.read_file(path(INDEX))) == 20 * entry.count
    assert_reads(disk, checkpoint(disk, FRAMES, 60, entry, seal=True))


def test_what_has_the_name_of_a_new_segment_goes() -> None:
    disk = made_disk()
    checkpoint(disk, some_frames(35, seed=9), 35, None, seal=True)
    entry = checkpoint(disk, FRAMES, 10, None)
    assert_reads(disk, entry)
    assert path(TAGS) not in disk.all_files()


@pytest.mark.parametrize("harm", ["missing", "short", "empty"])
def test_an_index_that_is_harmed_is_made_again_when_the_segment_is_opened(harm: str) -> None:
    disk = made_disk()
    entry = checkpoint(disk, FRAMES, 20, None)
    before = disk.read_file(path(INDEX))
    if harm == "missing":
        disk.unlink(path(INDEX))
    else:
        disk.write_file(path(INDEX), before[:-1] if harm == "short" else b"")
    writer = open_active(disk, PATHS, HEADER, entry)
    assert path(INDEX) in writer.paths_to_sync
    writer.sync()
    writer.close()
    assert disk.read_file(path(INDEX)) == before


@pytest.mark.slow
def test_a_seal_looks_at_the_index_before_it_makes_it_true() -> None:
    right = made_disk()
    checkpoint(right, FRAMES, 60, checkpoint(right, FRAMES, 20, None), seal=True)
    for offset in range(0, 400, 3):
        disk = made_disk()
        entry = checkpoint(disk, FRAMES, 20, None)
        if offset % 20 >= 8:
            continue
        disk.flip(path(INDEX), offset, 0x10)
        entry = checkpoint(disk, FRAMES, 60, entry, seal=True)
        assert files(disk) == files(right)


def test_an_index_that_the_disk_cannot_read_is_rebuilt() -> None:
    right = made_disk()
    checkpoint(right, FRAMES, 20, None, seal=True)
    disk = made_disk()
    fault = disk.fail("pread")
    checkpoint(disk, FRAMES, 20, None, seal=True)
    assert fault.fired
    assert files(disk) == files(right)


def test_data_that_is_shorter_than_its_entry_or_gone_is_damage() -> None:
    disk = made_disk()
    entry = checkpoint(disk, FRAMES, 20, None)
    with pytest.raises(SegmentDamage, match=r"\.data has"):
        open_active(disk, PATHS, HEADER, replaced(entry, data_bytes=entry.data_bytes + 1))
    disk.unlink(path(DATA))
    with pytest.raises(SegmentDamage, match="missing"):
        open_active(disk, PATHS, HEADER, entry)
    assert not disk.open_files


def test_a_sealed_segment_is_not_opened_again() -> None:
    written = Written()
    with pytest.raises(AssertionError, match="sealed files never change"):
        open_active(written.disk, PATHS, HEADER, written.entry)


def test_contents_are_synced_before_the_names_that_lead_to_them() -> None:
    disk = made_disk()
    writer = open_active(disk, PATHS, HEADER, None)
    append(writer, FRAMES)
    writer.seal(writer.footer(), writer.tags())
    directory = path(DATA).rpartition("/")[0]
    expected = [path(DATA), path(INDEX), path(TAGS), directory, PATHS.topics]
    assert writer.paths_to_sync == expected
    assert disk.trace is not None
    del disk.trace[:]
    writer.sync()
    assert [path_synced for _, path_synced in disk.trace] == expected
    assert writer.paths_to_sync == []
    writer.sync()
    assert len(disk.trace) == 5


def test_an_open_that_changes_nothing_has_nothing_to_sync() -> None:
    disk = made_disk()
    entry = checkpoint(disk, FRAMES, 20, None)
    writer = open_active(disk, PATHS, HEADER, entry)
    assert writer.paths_to_sync == []
    append(writer, FRAMES[20:21])
    assert writer.paths_to_sync == [path(DATA), path(INDEX)]


@pytest.mark.slow
def test_a_full_disk_is_tried_again_when_there_is_room() -> None:
    for room in range(200, 9000, 173):
        disk = made_disk()
        disk.space_bytes = room
        entry = None
        try:
            entry = checkpoint(disk, FRAMES, 30, None)
            entry = checkpoint(disk, FRAMES, 60, entry, seal=True)
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017
            disk.space_bytes = None
            entry = checkpoint(disk, FRAMES, 60, entry, seal=True)
        assert_reads(disk, entry)
        assert len(disk.read_file(path(DATA))) == entry.data_bytes
        assert not disk.open_files


def test_an_append_or_a_seal_that_failed_may_be_tried_again_at_once() -> None:
    disk = made_disk()
    writer = open_active(disk, PATHS, HEADER, None)
    for nth in (1, 2):
        disk.fail("pwrite", nth=nth, error=errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            append(writer, FRAMES)
        assert (writer.count, writer.data_bytes) == (0, SEGMENT_HEADER_BYTES)
    append(writer, FRAMES)
    for nth in (1, 2):
        disk.fail("pwrite", nth=nth, error=errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            writer.seal(writer.footer(), writer.tags())
    writer.seal(writer.footer(), writer.tags())
    writer.sync()
    writer.close()
    assert_reads(disk, entry_of(writer, FRAMES, sealed=True))


@pytest.mark.parametrize("nth", [2, 3])
def test_what_a_failed_append_left_is_cut_by_the_seal(nth: int) -> None:
    disk = made_disk()
    writer = open_active(disk, PATHS, HEADER, None)
    append(writer, FRAMES[:50])
    # Some of it is written before there is no more room.
    disk.fail("pwrite", nth=nth, error=errno.ENOSPC)
    disk.fail(nth=nth - 1, short=True)
    with pytest.raises(OSError, match="No space"):
        append(writer, FRAMES[50:])
    writer.seal(writer.footer(), writer.tags())
    writer.sync()
    writer.close()
    entry = entry_of(writer, FRAMES[:50], sealed=True)
    assert len(disk.read_file(path(DATA))) == entry.data_bytes
    before = disk.read_file(path(INDEX))
    assert_reads(disk, entry)
    assert disk.read_file(path(INDEX)) == before, "the index had to be made again"


def test_nothing_is_done_with_a_file_whose_sync_failed() -> None:
    disk = made_disk()
    writer = open_active(disk, PATHS, HEADER, None)
    append(writer, FRAMES)
    disk.fail("sync_data")
    with pytest.raises(OSError, match="Input/output"):
        writer.sync()
    with pytest.raises(AssertionError):
        append(writer, FRAMES)
    with pytest.raises(AssertionError):
        writer.seal(b"", None)


def history(disk: MemoryDisk) -> list[SegmentEntry | None]:
    """Three checkpoints; the entries that snapshots may have named, the last of them for sure."""
    named: list[SegmentEntry | None] = [None]
    with suppress(PowerCut, OSError):
        for end, seal in ((20, False), (45, False), (60, True)):
            named.append(checkpoint(disk, FRAMES, end, named[-1], seal=seal))
    return named


def write_the_rest(disk: MemoryDisk, entry: SegmentEntry | None) -> None:
    """What a snapshot named is there, and the segment can be brought to its end from there."""
    if entry is not None:
        assert_reads(disk, entry)
    if entry is None or not entry.is_sealed:
        assert_reads(disk, checkpoint(disk, FRAMES, 60, entry, seal=True))


@pytest.mark.slow
def test_what_a_snapshot_named_survives_a_power_cut_at_any_call() -> None:
    calls = 0
    while True:
        disk = made_disk()
        disk.cut_power_after(calls)
        named = history(disk)
        for seed in range(6):
            # The newest snapshot, or the one before it.
            for entry in named[-2:]:
                write_the_rest(disk.after_power_cut(Random(seed)), entry)
        if not disk.is_gone:
            break
        calls += 1
    assert calls > 20


@pytest.mark.slow
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_what_a_snapshot_named_is_there_after_any_call_failed(code: int) -> None:
    for nth in range(1, 60):
        disk = made_disk()
        fault = disk.fail(nth=nth, error=code, seed=nth)
        named = history(disk)
        disk.clear_faults()
        assert not disk.open_files
        # A worker whose sync failed ends; the next one finds what the media has.
        write_the_rest(disk.after_reboot(), named[-1])
        if not fault.fired:
            break
    assert not fault.fired


def test_entries_of_frames_are_those_in_the_file() -> None:
    disk = made_disk()
    checkpoint(disk, FRAMES, 60, None)
    assert disk.read_file(path(INDEX)) == entries_of(FRAMES, SEGMENT_HEADER_BYTES)
    writer: SegmentWriter = open_active(disk, PATHS, HEADER._replace(first_seq=161), None)
    assert writer.header.name == NAME._replace(first_seq=161)
