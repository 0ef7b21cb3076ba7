from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest

from tests.harness.machine.faults import PowerCut
from tests.harness.machine.memory_disk import MemoryDisk
from tests.unit.segment.written_segment import COLD_ROOT, NAME, PATHS, Written, replaced
from topicsd.disk.atomic_replace import replace_file
from topicsd.engine.upkeep.tiering import copy_segment, delete_copy
from topicsd.segment.dead_file import encode_dead
from topicsd.segment.entry import COLD, DATA, DEAD, HOT, INDEX, TAGS, SegmentDamage, SegmentEntry
from topicsd.segment.reader import SegmentReader
from topicsd.segment.store import LocalStore

pytestmark = pytest.mark.usefixtures("quiet_log")

FIRST = NAME.first_seq
ALL = 1 << 60


def files_at(disk: MemoryDisk, root: str) -> dict[str, bytes]:
    return {path[len(root) :]: disk.read_file(path) for path in disk.all_files() if path.startswith(root)}


def move(written: Written) -> list[str]:
    """A relocation as it is driven; what was recorded, step by step."""
    tiers = [HOT]
    copy_segment(written.hot, written.cold, NAME, written.entry)
    tiers.append(COLD)
    delete_copy(written.hot, NAME)
    return tiers


def assert_reads(disk: MemoryDisk, written: Written, tier: str) -> None:
    entry = replaced(written.entry, tier=tier)
    reader = SegmentReader(LocalStore(disk, PATHS.root), LocalStore(disk, COLD_ROOT))
    index = reader.index(NAME, entry)
    data, start = reader.frames(NAME, entry, index, FIRST, entry.last_seq)
    reader.check_frames(NAME, index, data, start, FIRST, entry.last_seq)
    assert data == b"".join(written.frames)
    assert reader.find_tag(NAME, entry, b"all", False, ALL) == written.tags[b"all"]
    assert reader.dead_set(NAME, entry).dead_count == entry.dead_count


def test_a_segment_that_moved_is_the_same_in_the_other_tier() -> None:
    written = Written(dead=(FIRST, FIRST + 9))
    before = files_at(written.disk, PATHS.root)
    move(written)
    assert files_at(written.disk, COLD_ROOT) == before
    assert files_at(written.disk, PATHS.root) == {}
    assert_reads(written.disk, written, COLD)
    assert_reads(written.disk, written, HOT)
    delete_copy(written.hot, NAME)


def test_the_dead_set_that_moves_is_the_last_one() -> None:
    written = Written(dead=(FIRST,))
    written.reader.dead_set(NAME, written.entry)
    replace_file(written.disk, written.path(DEAD), encode_dead(FIRST, 40, b"\x03" + bytes(4), 7000))
    written.entry = replaced(written.entry, dead_count=2)
    move(written)
    assert_reads(written.disk, written, COLD)


def test_only_the_files_that_it_has_move() -> None:
    written = Written()
    written.entry = replaced(written.entry, has_tags=False)
    move(written)
    assert sorted(key.rpartition(".")[2] for key in files_at(written.disk, COLD_ROOT)) == ["data", "idx"]


def test_what_stands_behind_the_length_that_counts_does_not_move() -> None:
    written = Written()
    before = written.files()[DATA]
    written.disk.write_file(written.path(DATA), before + b"never taken over")
    move(written)
    assert written.disk.read_file(written.path(DATA, COLD_ROOT)) == before


@pytest.mark.parametrize("suffix", [INDEX, TAGS])
@pytest.mark.parametrize("harm", ["missing", "changed"])
def test_what_can_be_made_again_is_right_in_the_copy(suffix: str, harm: str) -> None:
    written = Written(dead=(FIRST,))
    before = files_at(written.disk, PATHS.root)
    if harm == "missing":
        written.disk.unlink(written.path(suffix))
    else:
        written.disk.flip(written.path(suffix), 30, 1)
    move(written)
    assert files_at(written.disk, COLD_ROOT) == before


@pytest.mark.parametrize("suffix", [DATA, DEAD])
def test_a_damaged_segment_stays_where_it_is(suffix: str) -> None:
    written = Written(dead=(FIRST,))
    written.disk.flip(written.path(suffix), len(written.files()[suffix]) // 2, 1)
    before = files_at(written.disk, PATHS.root)
    with pytest.raises(SegmentDamage):
        move(written)
    assert files_at(written.disk, PATHS.root) == before
    assert files_at(written.disk, COLD_ROOT) == {}


def test_the_rate_limit_counts_every_byte_twice() -> None:
    written = Written()
    sizes: list[int] = []
    copy_segment(written.hot, written.cold, NAME, written.entry, sizes.append)
    assert sum(sizes) >= 2 * written.entry.data_bytes


def test_work_that_its_pace_ends_leaves_nothing_half() -> None:
    class Stopped(Exception):
        pass

    def pace(size: int) -> None:
        raise Stopped

    written = Written()
    with pytest.raises(Stopped):
        copy_segment(written.hot, written.cold, NAME, written.entry, pace)
    assert files_at(written.disk, COLD_ROOT) == {}


def moved_until(disk: MemoryDisk, written: Written) -> str:
    """The tier that was recorded last."""
    tier = HOT
    with suppress(PowerCut, OSError):
        hot, cold = LocalStore(disk, PATHS.root), LocalStore(disk, COLD_ROOT)
        copy_segment(hot, cold, NAME, written.entry)
        tier = COLD
        delete_copy(hot, NAME)
    return tier


@pytest.mark.slow
def test_a_power_cut_at_any_call_leaves_it_readable_by_the_tier_that_was_recorded() -> None:
    written = Written(count=10, dead=(FIRST, FIRST + 9))
    calls = 0
    while True:
        disk = written.disk.after_reboot()
        disk.cut_power_after(calls)
        tier = moved_until(disk, written)
        for seed in range(5):
            survivor = disk.after_power_cut(Random(seed))
            assert_reads(survivor, written, tier)
            assert moved_until(survivor, written) == COLD or tier == COLD
            assert_reads(survivor, written, COLD)
        if not disk.is_gone:
            break
        calls += 1
    assert calls > 20


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_call_that_fails_leaves_it_readable_and_the_next_try_succeeds(code: int) -> None:
    written = Written(count=10, dead=(FIRST, FIRST + 9))
    nth = 1
    while True:
        disk = written.disk.after_reboot()
        fault = disk.fail(nth=nth, error=code)
        tier = moved_until(disk, written)
        disk.clear_faults()
        if not fault.fired:
            break
        assert_reads(disk, written, tier)
        moved_until(disk, written)
        assert_reads(disk, written, COLD)
        nth += 1
    assert nth > 20


def test_an_entry_is_not_changed_by_a_copy() -> None:
    written = Written()
    before: SegmentEntry = written.entry
    move(written)
    assert written.entry is before
