from __future__ import annotations

import errno

import pytest

from tests.unit.segment.written_segment import NAME, Written, replaced
from topicsd.engine.upkeep.scrub import PART_BYTES, part_end, scrub
from topicsd.segment.data_file import SEGMENT_HEADER_BYTES
from topicsd.segment.entry import DATA, DEAD, INDEX, TAGS, SegmentDamage

pytestmark = pytest.mark.usefixtures("quiet_log")

FIRST = NAME.first_seq


def scrubbed(written: Written) -> list[SegmentDamage]:
    work = scrub(written.fresh_reader(), NAME, written.entry)
    while True:
        try:
            assert 0 <= next(work) <= max(PART_BYTES, 20 * written.entry.count + 500)
        except StopIteration as end:
            damages: list[SegmentDamage] = end.value
            return damages


def ranges(damages: list[SegmentDamage]) -> list[tuple[int, int]]:
    return [(one.first_seq, one.last_seq) for one in damages]


def middle_of(written: Written, seq: int) -> int:
    at = seq - FIRST
    return SEGMENT_HEADER_BYTES + sum(map(len, written.frames[:at])) + len(written.frames[at]) // 2


def test_an_intact_segment_has_no_damage() -> None:
    written = Written(count=2000, dead=(FIRST, FIRST + 7))
    before = written.files()
    assert scrubbed(written) == []
    assert written.files() == before


def test_every_damaged_record_is_named_and_no_other() -> None:
    written = Written(count=2000)
    bad = [FIRST, FIRST + 3, FIRST + 4, FIRST + 1000, FIRST + 1999]
    for seq in bad:
        written.disk.flip(written.path(DATA), middle_of(written, seq), 1)
    assert ranges(scrubbed(written)) == [(seq, seq) for seq in bad]


def test_records_that_the_media_lost_are_named_and_those_in_front_are_looked_at() -> None:
    written = Written(count=200)
    written.disk.flip(written.path(DATA), middle_of(written, FIRST + 5), 1)
    bad = range(middle_of(written, FIRST + 50), middle_of(written, FIRST + 52))
    plain = written.disk.pread
    data_bytes = written.entry.data_bytes

    def pread(fd: int, size: int, offset: int) -> bytes:
        is_data = written.disk.fstat(fd).size == data_bytes
        if is_data and offset < bad.stop and offset + size > bad.start:
            raise OSError(errno.EIO, "Input/output error")
        return plain(fd, size, offset)

    written.disk.pread = pread  # type: ignore[method-assign]
    assert ranges(scrubbed(written)) == [(FIRST + 5, FIRST + 5), (FIRST + 50, FIRST + 52)]


def test_what_can_be_made_again_is() -> None:
    written = Written()
    before = written.files()
    written.disk.flip(written.path(INDEX), 33, 1)
    written.disk.flip(written.path(TAGS), 33, 1)
    assert scrubbed(written) == []
    assert written.files() == before


def test_tags_that_cannot_be_made_again_leave_the_damage_that_is_why() -> None:
    written = Written()
    written.disk.flip(written.path(DATA), middle_of(written, FIRST + 5), 1)
    written.disk.unlink(written.path(TAGS))
    assert ranges(scrubbed(written)) == [(FIRST + 5, FIRST + 5)]


@pytest.mark.parametrize("harm", ["missing", "changed", "stale"])
def test_a_dead_set_that_is_not_right_is_damage_of_all(harm: str) -> None:
    written = Written(dead=(FIRST, FIRST + 7))
    if harm == "missing":
        written.disk.unlink(written.path(DEAD))
    elif harm == "changed":
        written.disk.flip(written.path(DEAD), 44, 1)
    else:
        written.entry = replaced(written.entry, dead_count=3)
    assert ranges(scrubbed(written)) == [(FIRST, FIRST + 39)]


def test_data_that_is_gone_is_damage_of_all() -> None:
    written = Written()
    written.disk.unlink(written.path(DATA))
    assert ranges(scrubbed(written)) == [(FIRST, FIRST + 39)]
    written.disk.unlink(written.path(INDEX))
    assert ranges(scrubbed(written)) == [(FIRST, FIRST + 39)]


def test_a_part_is_never_larger_than_requested_unless_one_record_is() -> None:
    written = Written(count=100)
    index = written.reader.index(NAME, written.entry)
    for size in (1, 60, 200, 1000, 10**6):
        seq = FIRST
        while seq <= written.entry.last_seq:
            end = part_end(index, seq, size)
            data, _ = written.reader.frames(NAME, written.entry, index, seq, end)
            assert end >= seq
            assert len(data) <= size or end == seq
            if end < written.entry.last_seq:
                assert len(data) + len(written.frames[end + 1 - FIRST]) > size
            seq = end + 1
