from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from tests.unit.segment.written_segment import COLD_ROOT, HEADER, NAME, Written, parsed, replaced
from topicsd.disk.atomic_replace import replace_file
from topicsd.segment.data_file import SEGMENT_HEADER_BYTES, encode_segment_header
from topicsd.segment.dead_file import DeadDamage, encode_dead
from topicsd.segment.entry import COLD, DATA, DEAD, HOT, INDEX, TAGS, SegmentDamage
from topicsd.segment.index_file import DAMAGED
from topicsd.segment.reader import SegmentReader
from topicsd.segment.rebuild import rebuild_index

pytestmark = pytest.mark.usefixtures("quiet_log")

FIRST = NAME.first_seq
ALL = 1 << 60


def end_of(written: Written, seq: int) -> int:
    return SEGMENT_HEADER_BYTES + sum(map(len, written.frames[: seq - FIRST + 1]))


@pytest.mark.parametrize("sealed", [True, False])
def test_any_range_of_a_segment_is_read_in_one_call(sealed: bool) -> None:
    written = Written(sealed=sealed)
    for first in range(FIRST, FIRST + 40, 7):
        for last in range(first, FIRST + 40, 5):
            assert written.read(first, last) == written.frames[first - FIRST : last - FIRST + 1]


@pytest.mark.parametrize("sealed", [True, False])
def test_the_records_with_a_tag_are_found(sealed: bool) -> None:
    written = Written(sealed=sealed)
    for tag, seqs in written.tags.items():
        assert written.reader.find_tag(NAME, written.entry, tag, False, ALL) == seqs
        below = seqs[-1]
        assert written.reader.find_tag(NAME, written.entry, tag, False, below) == seqs[:-1]
    orders = sorted(seq for tag, seqs in written.tags.items() if tag.startswith(b"order/") for seq in seqs)
    assert written.reader.find_tag(NAME, written.entry, b"order/", True, ALL) == orders
    assert written.reader.find_tag(NAME, written.entry, b"none", False, ALL) == []
    assert written.reader.find_tag(NAME, replaced(written.entry, has_tags=False), b"all", False, ALL) == (
        [] if sealed else written.tags[b"all"]
    )


def test_an_index_at_hand_needs_no_disk() -> None:
    written = Written()
    assert written.reader.cached_index(NAME) is None
    index = written.reader.index(NAME, written.entry)
    written.disk.fail("pread", forever=True)
    assert written.reader.cached_index(NAME) is index
    assert written.reader.index(NAME, written.entry) is index
    written.reader.forget(NAME)
    assert written.reader.cached_index(NAME) is None


def test_an_active_segment_that_grew_is_read_anew() -> None:
    written = Written(sealed=False)
    short = replaced(written.entry, count=10, data_bytes=end_of(written, FIRST + 9))
    assert written.reader.index(NAME, short).count == 10
    assert written.reader.index(NAME, written.entry).count == 40
    assert written.reader.index(NAME, short).count == 40


def test_what_is_kept_is_bounded() -> None:
    written = Written()
    written.reader = SegmentReader(written.hot, None, index_cache_bytes=3000)
    index = written.reader.index(NAME, written.entry)
    for number in range(10):
        written.reader._add_to_cache(NAME._replace(epoch=number), INDEX, index)
    assert written.reader.cached_index(NAME) is None
    assert len(written.reader._cache) == 3000 // index.size_bytes
    assert written.reader._cached_bytes == len(written.reader._cache) * index.size_bytes
    written.reader.close()
    assert not written.disk.open_files


@pytest.mark.parametrize("suffix", [INDEX, TAGS])
@pytest.mark.parametrize("harm", ["missing", "cut", "empty", "changed", "longer"])
def test_an_index_or_tags_that_are_harmed_are_made_again_from_the_data(suffix: str, harm: str) -> None:
    written = Written()
    before = written.files()
    path = written.path(suffix)
    data = before[suffix]
    if harm == "missing":
        written.disk.unlink(path)
    elif harm == "changed":
        written.disk.write_file(path, data[:-1] + bytes((data[-1] ^ 1,)))
    else:
        written.disk.write_file(path, {"cut": data[:-3], "empty": b"", "longer": data + b"\0"}[harm])
    assert written.read(FIRST, FIRST + 39) == written.frames
    for tag, seqs in written.tags.items():
        assert written.reader.find_tag(NAME, written.entry, tag, False, ALL) == seqs
    assert written.files() == before


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_what_cannot_be_put_back_is_answered_all_the_same(code: int) -> None:
    written = Written()
    written.disk.unlink(written.path(INDEX))
    written.disk.unlink(written.path(TAGS))
    written.disk.fail(error=code, forever=True)
    assert written.read(FIRST, FIRST + 39) == written.frames
    assert written.reader.find_tag(NAME, written.entry, b"all", False, ALL) == written.tags[b"all"]


def test_the_files_of_an_active_segment_are_left_to_its_writer() -> None:
    written = Written(sealed=False)
    written.disk.write_file(written.path(INDEX), b"")
    before = written.files()
    assert written.read(FIRST, FIRST + 39) == written.frames
    assert written.files() == before


def test_an_error_that_says_nothing_about_the_bytes_is_no_damage() -> None:
    written = Written()
    written.disk.fail("open_read", error=errno.EMFILE, forever=True)
    for call in (
        lambda: written.reader.index(NAME, written.entry),
        lambda: written.reader.find_tag(NAME, written.entry, b"all", False, ALL),
        lambda: written.reader.dead_set(NAME, written.entry),
    ):
        with pytest.raises(OSError, match="Too many open files"):
            call()
    written.disk.clear_faults()
    index = written.reader.index(NAME, written.entry)
    written.hot.close()
    written.disk.fail("open_read", error=errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        written.reader.frames(NAME, written.entry, index, FIRST, FIRST + 39)
    assert written.read(FIRST, FIRST + 39) == written.frames


@pytest.mark.parametrize("nth", range(1, 12))
def test_a_rebuild_that_meets_such_an_error_takes_no_record_for_damaged(nth: int) -> None:
    written = Written()
    written.disk.unlink(written.path(INDEX))
    fault = written.disk.fail("pread", nth=nth, error=errno.EAGAIN, forever=True)
    with suppress(OSError):
        assert not written.reader.index(NAME, written.entry).has_damage
    assert fault.fired or nth > 2
    written.disk.clear_faults()
    assert written.read(FIRST, FIRST + 39) == written.frames


def test_data_that_is_cut_is_damage_of_exactly_what_is_missing() -> None:
    written = Written()
    written.disk.write_file(written.path(DATA), written.files()[DATA][: end_of(written, FIRST + 24) + 3])
    with pytest.raises(SegmentDamage) as damage:
        written.read(FIRST, FIRST + 39)
    assert (damage.value.first_seq, damage.value.last_seq) == (FIRST + 25, FIRST + 39)
    assert written.read(FIRST, FIRST + 24) == written.frames[:25]


@pytest.mark.parametrize("has_index", [True, False])
def test_data_that_is_missing_is_damage_of_all_of_it(has_index: bool) -> None:
    written = Written()
    written.disk.unlink(written.path(DATA))
    if not has_index:
        written.disk.unlink(written.path(INDEX))
        written.disk.unlink(written.path(TAGS))
        with pytest.raises(SegmentDamage, match="missing"):
            written.reader.find_tag(NAME, written.entry, b"all", False, ALL)
    with pytest.raises(SegmentDamage) as damage:
        written.read(FIRST, FIRST + 39)
    assert (damage.value.first_seq, damage.value.last_seq) == (FIRST, FIRST + 39)


def test_records_that_the_media_lost_are_named_and_those_around_them_are_read() -> None:
    written = Written()
    bad = range(end_of(written, FIRST + 9) + 1, end_of(written, FIRST + 11) - 1)
    plain = written.disk.pread

    def pread(fd: int, size: int, offset: int) -> bytes:
        if size and offset < bad.stop and offset + size > bad.start:
            raise OSError(errno.EIO, "Input/output error")
        return plain(fd, size, offset)

    index = written.reader.index(NAME, written.entry)
    written.disk.pread = pread  # type: ignore[method-assign]
    with pytest.raises(SegmentDamage) as damage:
        written.reader.frames(NAME, written.entry, index, FIRST, FIRST + 39)
    assert (damage.value.first_seq, damage.value.last_seq) == (FIRST + 10, FIRST + 11)
    assert written.read(FIRST, FIRST + 9) == written.frames[:10]
    assert written.read(FIRST + 12, FIRST + 39) == written.frames[12:]


def test_an_error_of_the_media_that_goes_by_is_no_damage() -> None:
    written = Written()
    index = written.reader.index(NAME, written.entry)
    written.disk.fail("pread")
    data, start = written.reader.frames(NAME, written.entry, index, FIRST, FIRST + 39)
    assert (data, start) == (b"".join(written.frames), SEGMENT_HEADER_BYTES)


@pytest.mark.parametrize("has_index", [True, False])
def test_a_changed_byte_in_the_data_costs_the_record_it_is_in(has_index: bool) -> None:
    written = Written(count=12)
    if not has_index:
        written.disk.unlink(written.path(INDEX))
    data = written.files()[DATA]
    for offset in range(SEGMENT_HEADER_BYTES, len(data), 3):
        written.disk.flip(written.path(DATA), offset, 0x04)
        seq = next(seq for seq in range(FIRST, FIRST + 12) if end_of(written, seq) > offset)
        reader = written.fresh_reader()
        with pytest.raises(SegmentDamage) as damage:
            written.read(FIRST, FIRST + 11, reader)
        assert (damage.value.first_seq, damage.value.last_seq) == (seq, seq)
        if seq > FIRST:
            assert written.read(FIRST, seq - 1, reader) == written.frames[: seq - FIRST]
        if seq < FIRST + 11:
            assert written.read(seq + 1, FIRST + 11, reader) == written.frames[seq - FIRST + 1 :]
        written.disk.flip(written.path(DATA), offset, 0x04)
    assert written.disk.read_file(written.path(DATA)) == data
    if not has_index:
        assert INDEX not in written.files(), "an index with damage in it was put back"


def test_tags_are_not_made_from_data_that_is_damaged() -> None:
    written = Written()
    written.disk.unlink(written.path(TAGS))
    written.disk.flip(written.path(DATA), end_of(written, FIRST + 9) + 20, 1)
    with pytest.raises(SegmentDamage) as damage:
        written.reader.find_tag(NAME, written.entry, b"all", False, ALL)
    assert (damage.value.first_seq, damage.value.last_seq) == (FIRST + 10, FIRST + 10)


def answers(written: Written) -> list[Callable[[], object]]:
    """What can be asked, each of which has one right answer."""
    entry, reader = written.entry, written.fresh_reader()
    calls: list[Callable[[], object]] = [
        lambda: written.read(FIRST, FIRST + 19, reader),
        lambda: [*reader.index(NAME, entry).times_ms],
        lambda: bytes(reader.index(NAME, entry).flags),
        lambda: reader.dead_set(NAME, entry),
    ]
    for tag in (b"all", b"order/3", b"none"):
        calls.append(lambda tag=tag: reader.find_tag(NAME, entry, tag, False, ALL))  # type: ignore[misc]
    calls.append(lambda: reader.find_tag(NAME, entry, b"o", True, ALL))
    return calls


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [DATA, INDEX, TAGS, DEAD])
def test_a_byte_changed_in_any_file_never_gives_a_wrong_answer(suffix: str) -> None:
    written = Written(count=20, dead=(FIRST + 3, FIRST + 19))
    right = [ask() for ask in answers(written)]
    path = written.path(suffix)
    original = written.disk.read_file(path)
    rng = Random(suffix)
    for offset in range(len(original)):
        written.disk.flip(path, offset, rng.randrange(1, 256))
        for ask, expected in zip(answers(written), right, strict=True):
            try:
                answer = ask()
            except (SegmentDamage, DeadDamage):
                answer = expected if suffix in (DATA, DEAD) else "damage of what can be made again"
            assert answer == expected, f"{suffix}, offset {offset}"
        written.disk.write_file(path, original)


def test_a_dead_set_is_read_and_a_stale_or_missing_one_is_said() -> None:
    written = Written(dead=(FIRST, FIRST + 8))
    dead = written.reader.dead_set(NAME, written.entry)
    assert (dead.dead_count, dead.complete_to, bytes(dead.bitmap[:2])) == (2, 6000, b"\x01\x01")
    written.disk.fail("pread")
    with pytest.raises(DeadDamage, match="Input/output"):
        written.reader.dead_set(NAME, written.entry)
    with pytest.raises(DeadDamage, match="has 2 dead records, the snapshot counts 3"):
        written.reader.dead_set(NAME, replaced(written.entry, dead_count=3))
    # The checkpoint writes it before the snapshot.
    assert written.reader.dead_set(NAME, replaced(written.entry, dead_count=1)).dead_count == 2
    written.disk.unlink(written.path(DEAD))
    written.hot.forget(NAME.key(DEAD))
    with pytest.raises(FileNotFoundError):
        written.reader.dead_set(NAME, written.entry)


def test_a_dead_set_that_was_replaced_is_read_anew() -> None:
    written = Written(dead=(FIRST,))
    assert written.reader.dead_set(NAME, written.entry).dead_count == 1
    replace_file(written.disk, written.path(DEAD), encode_dead(FIRST, 40, b"\x03" + bytes(4), 7000))
    assert written.reader.dead_set(NAME, replaced(written.entry, dead_count=2)).dead_count == 2


def move(written: Written, suffix: str) -> None:
    written.disk.make_dirs(written.path("", COLD_ROOT).rpartition("/")[0])
    written.disk.write_file(written.path(suffix, COLD_ROOT), written.disk.read_file(written.path(suffix)))


@pytest.mark.parametrize("tier", [HOT, COLD])
@pytest.mark.parametrize("moved", [(), (DATA,), (DATA, INDEX), (DATA, INDEX, TAGS)])
@pytest.mark.parametrize("deleted", [True, False])
def test_a_segment_is_read_from_whichever_tier_has_it(
    tier: str, moved: tuple[str, ...], deleted: bool
) -> None:
    written = Written()
    for suffix in moved:
        move(written, suffix)
        if deleted:
            written.disk.unlink(written.path(suffix))
    written.entry = replaced(written.entry, tier=tier)
    assert written.read(FIRST, FIRST + 39) == written.frames
    assert written.reader.find_tag(NAME, written.entry, b"all", False, ALL) == written.tags[b"all"]


@pytest.mark.parametrize("tier", [HOT, COLD])
def test_where_both_tiers_have_it_the_hot_one_is_read(tier: str) -> None:
    written = Written()
    for suffix in (DATA, INDEX, TAGS):
        move(written, suffix)
    for suffix in (DATA, INDEX, TAGS):
        written.disk.write_file(written.path(suffix, COLD_ROOT), b"damaged")
    written.entry = replaced(written.entry, tier=tier)
    assert written.read(FIRST, FIRST + 39) == written.frames
    assert written.reader.find_tag(NAME, written.entry, b"all", False, ALL) == written.tags[b"all"]


def test_of_two_dead_sets_the_fuller_one_is_the_newer_one() -> None:
    written = Written(dead=(FIRST,))
    move(written, DEAD)
    written.mark_dead((FIRST, FIRST + 1))
    for tier in (HOT, COLD):
        assert written.reader.dead_set(NAME, replaced(written.entry, tier=tier)).dead_count == 2
    written.disk.write_file(written.path(DEAD), encode_dead(FIRST, 40, bytes(5), 0)[:-1])
    assert written.fresh_reader().dead_set(NAME, replaced(written.entry, dead_count=1)).dead_count == 1


def test_an_index_made_again_from_a_rewritten_segment_has_its_dead() -> None:
    written = Written()
    kept = [at for at in range(40) if at % 3 == 1]
    header = encode_segment_header(HEADER._replace(generation=1))
    data = header + b"".join(written.frames[at] for at in kept)
    entry = replaced(written.entry, data_bytes=len(data), generation=1)
    rebuilt = rebuild_index(reading(data), NAME._replace(generation=1), entry)
    assert not rebuilt.has_damage
    assert [at for at in range(40) if rebuilt.lengths[at]] == kept
    assert rebuilt.data_end == len(data)
    assert [*rebuilt.times_ms] == sorted(rebuilt.times_ms)
    assert all(rebuilt.times_ms[at] == parsed(written.frames[at]).ts for at in kept)


def test_a_file_of_another_generation_is_not_taken_for_this_one() -> None:
    written = Written()
    data = written.files()[DATA]
    rebuilt = rebuild_index(reading(data), NAME._replace(generation=1), replaced(written.entry, generation=1))
    assert rebuilt.has_damage
    assert set(rebuilt.flags) == {DAMAGED}


def reading(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, size: data[offset : offset + size]
