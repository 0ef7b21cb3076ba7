from __future__ import annotations

import itertools

import pytest

from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import PATHS
from tests.harness.shard.wal_bytes import WalBytes, append_frame
from topicsd.disk.layout import wal_name
from topicsd.log.current_file import Current
from topicsd.log.file_header import FILE_HEADER_BYTES, VERSION, encode_file_header
from topicsd.log.frame import FrameType, encode_frame
from topicsd.log.reader import WalBatch
from topicsd.log.walk import (
    VERDICTS,
    LogVerdict,
    UnreadableLog,
    Walk,
    open_wal_files,
    verdict_on,
    walk_log,
)

FIRST = wal_name(1)

# linked, synced past, remains, later files: by hand, not from the table of the code.
EXPECTED = {
    (False, False, False, False): LogVerdict.END,
    (False, False, False, True): LogVerdict.CUT,
    (False, False, True, False): LogVerdict.CUT,
    (False, False, True, True): LogVerdict.CUT,
    (False, True, False, False): LogVerdict.REFUSE,
    (False, True, False, True): LogVerdict.REFUSE,
    (False, True, True, False): LogVerdict.REFUSE,
    (False, True, True, True): LogVerdict.REFUSE,
    (True, False, False, False): LogVerdict.CONTINUE,
    (True, False, False, True): LogVerdict.CONTINUE,
    (True, False, True, False): LogVerdict.CONTINUE,
    (True, False, True, True): LogVerdict.CONTINUE,
    (True, True, False, False): LogVerdict.CONTINUE,
    (True, True, False, True): LogVerdict.CONTINUE,
    (True, True, True, False): LogVerdict.CONTINUE,
    (True, True, True, True): LogVerdict.CONTINUE,
}


def log_of(*wals: WalBytes) -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_dirs(PATHS.wal)
    for wal in wals:
        wal.put(disk, PATHS)
    return disk


def walked(disk: MemoryDisk, current: Current | None = None) -> tuple[Walk, list[tuple[WalBatch, int]]]:
    batches: list[tuple[WalBatch, int]] = []
    files = open_wal_files(disk, PATHS)
    return walk_log(disk, files, current, lambda batch, position: batches.append((batch, position))), batches


def current(state: str, file: int = 1, end: int = 0) -> Current:
    return Current(state=state, file=file, end=end, boot_id="boot")  # type: ignore[arg-type]


def two_batches() -> WalBytes:
    wal = WalBytes()
    wal.batch(append_frame(1), append_frame(2))
    wal.batch(append_frame(3))
    return wal


@pytest.mark.parametrize("case", list(itertools.product((False, True), repeat=4)))
def test_every_case_has_exactly_one_row_and_the_verdict_that_was_meant(
    case: tuple[bool, bool, bool, bool],
) -> None:
    rows = [
        row
        for row, _ in VERDICTS
        if all(want is None or want == got for want, got in zip(row, case, strict=True))
    ]
    assert len(rows) == 1
    assert verdict_on(*case) is EXPECTED[case]


def test_a_log_over_several_files_is_one_line_of_positions() -> None:
    first = two_batches()
    second = first.next_file()
    second.batch(append_frame(4))
    third = second.next_file(epoch=b"epoch-of-a-third")
    third.batch()
    walk, batches = walked(log_of(first, second, third))
    sizes = [end - start for wal in (first, second, third) for start, end in wal.batches]
    assert [position for _, position in batches] == [sum(sizes[:index]) for index in range(4)]
    assert [batch.first_ordinal for batch, _ in batches] == [1, 4, 6, 8]
    assert (walk.verdict, walk.position, walk.ordinal, walk.chain) == (
        LogVerdict.END,
        sum(sizes),
        9,
        third.chain,
    )
    assert [(file.wal_file.name, file.start_position, file.end) for file in walk.files] == [
        (FIRST, 0, first.end),
        (wal_name(6), sum(sizes[:2]), second.end),
        (wal_name(8), sum(sizes[:3]), third.end),
    ]
    assert walk.beyond == []
    assert not walk.is_short


def test_a_shard_without_a_file_is_an_empty_log() -> None:
    walk, batches = walked(log_of())
    assert (walk.verdict, walk.files, walk.position, walk.ordinal, walk.chain) == (
        LogVerdict.END,
        [],
        0,
        1,
        0,
    )
    assert batches == []


def test_a_tail_of_zeros_is_the_end() -> None:
    wal = two_batches()
    walk, _ = walked(log_of(wal))
    assert (walk.verdict, walk.place, walk.offset) == (LogVerdict.END, FIRST, wal.end)


def test_torn_bytes_behind_the_last_batch_are_cut() -> None:
    wal = two_batches()
    stop = wal.end
    wal.data += append_frame(4)[:20]
    walk, batches = walked(log_of(wal))
    assert (walk.verdict, walk.place, walk.offset) == (LogVerdict.CUT, FIRST, stop)
    assert walk.remains_end == len(wal.data.rstrip(b"\0"))
    assert len(batches) == 2


def test_a_truncated_last_batch_is_cut_whole() -> None:
    wal = two_batches()
    whole = bytes(wal.data)
    start, end = wal.batches[-1]
    for kept in range(start + 1, end):
        wal.data[:] = whole[:kept]
        walk, batches = walked(log_of(wal))
        assert (walk.verdict, walk.offset, len(batches)) == (LogVerdict.CUT, start, 1), f"cut at {kept}"
        assert walk.ordinal == 4


def test_damage_in_front_of_a_batch_that_says_it_was_synced_is_refused() -> None:
    wal = two_batches()
    start = wal.batches[1][0]
    wal.batch(append_frame(4), synced=wal.batches[1][1])
    wal.data[start + 10] ^= 1
    walk, batches = walked(log_of(wal))
    assert (walk.verdict, walk.place, walk.offset, len(batches)) == (LogVerdict.REFUSE, FIRST, start, 1)
    assert f"synced up to {wal.batches[1][1]}" in walk.reason


def test_damage_exactly_at_the_synced_offset_is_a_torn_tail() -> None:
    wal = two_batches()
    start = wal.batches[1][0]
    wal.batch(append_frame(4), synced=start)
    wal.data[start + 10] ^= 1
    assert walked(log_of(wal))[0].verdict is LogVerdict.CUT


@pytest.mark.parametrize(("state", "verdict"), [("clean", LogVerdict.REFUSE), ("running", LogVerdict.CUT)])
def test_a_clean_end_behind_the_damage_proves_that_it_was_synced(state: str, verdict: LogVerdict) -> None:
    wal = two_batches()
    wal.data[-5] ^= 1
    walk, _ = walked(log_of(wal), current(state, end=wal.end))
    assert walk.verdict is verdict
    if verdict is LogVerdict.REFUSE:
        assert f"a clean end at {wal.end}" in walk.reason


def test_a_clean_end_of_which_nothing_is_left_is_refused_and_not_taken_for_an_end() -> None:
    wal = two_batches()
    start, end = wal.batches[1]
    wal.data[start:] = bytes(end - start)
    walk, _ = walked(log_of(wal), current("clean", end=end))
    assert (walk.verdict, walk.offset, walk.remains_end) == (LogVerdict.REFUSE, start, start)


def test_a_clean_end_exactly_here_is_the_end() -> None:
    wal = two_batches()
    assert walked(log_of(wal), current("clean", end=wal.end))[0].verdict is LogVerdict.END


def test_a_torn_end_of_a_file_with_an_unsynced_successor_cuts_the_successor_off() -> None:
    first = two_batches()
    second = first.next_file()
    second.batch(append_frame(4))
    start = first.batches[1][0]
    first.data[start + 5] ^= 1
    walk, batches = walked(log_of(first, second), current("running", file=1))
    assert (walk.verdict, walk.place, walk.offset, len(batches)) == (LogVerdict.CUT, FIRST, start, 1)
    assert [file.name for file in walk.beyond] == [wal_name(6)]
    assert [file.wal_file.name for file in walk.files] == [FIRST]


def test_a_missing_end_of_a_file_with_a_successor_is_cut_too() -> None:
    first = two_batches()
    second = first.next_file()
    start = first.batches[1][0]
    first.data[start:] = b""
    walk, _ = walked(log_of(first, second), current("running", file=1))
    assert (walk.verdict, walk.offset, walk.remains_end) == (LogVerdict.CUT, start, start)
    assert [file.name for file in walk.beyond] == [wal_name(6)]


def test_a_current_that_names_a_later_file_proves_that_this_one_was_synced() -> None:
    first = two_batches()
    second = first.next_file()
    first.data[first.batches[1][0] + 5] ^= 1
    walk, _ = walked(log_of(first, second), current("running", file=6))
    assert (walk.verdict, walk.place) == (LogVerdict.REFUSE, FIRST)
    assert f"CURRENT names {wal_name(6)}" in walk.reason


def test_a_later_file_that_knows_itself_synced_proves_that_this_one_was() -> None:
    first = two_batches()
    second = first.next_file()
    second.batch(append_frame(4))
    second.batch(append_frame(5), synced=second.end)
    first.data[first.batches[1][0] + 5] ^= 1
    walk, _ = walked(log_of(first, second))
    assert walk.verdict is LogVerdict.REFUSE
    assert f"{wal_name(6)} has batches that were written after" in walk.reason


def test_bytes_that_a_recovery_cut_off_stay_cut_off_before_the_next_file() -> None:
    first = two_batches()
    start, _ = first.batches[1]
    first.ordinal, first.chain = 4, walked(log_of(first))[1][0][0].closing.chain
    second = first.next_file()
    second.batch(append_frame(30))
    walk, batches = walked(log_of(first, second), current("running", file=4))
    assert walk.verdict is LogVerdict.END
    assert [(batch.first_ordinal, batch.frame_count) for batch, _ in batches] == [(1, 2), (4, 1)]
    assert walk.files[0].end == start


def test_a_successor_with_the_right_ordinal_and_another_chain_is_not_linked() -> None:
    first = two_batches()
    second = WalBytes(first.ordinal, chain_seed=99, epoch=b"f" * 16)
    second.batch(append_frame(4))
    walk, _ = walked(log_of(first, second))
    assert (walk.verdict, walk.place, [file.name for file in walk.beyond]) == (
        LogVerdict.CUT,
        FIRST,
        [wal_name(6)],
    )


def test_a_damaged_header_of_a_file_that_was_never_synced_is_cut_with_the_file() -> None:
    first = two_batches()
    second = first.next_file()
    second.batch(append_frame(4))
    second.data[10] ^= 1
    disk = log_of(first, second)
    walk, batches = walked(disk, current("running", file=1))
    assert (walk.verdict, walk.place, walk.offset) == (LogVerdict.CUT, wal_name(6), 0)
    assert walk.remains_end == second.header.file_bytes
    assert (len(batches), [file.wal_file.name for file in walk.files]) == (2, [FIRST])


def test_a_damaged_header_of_the_file_that_current_names_is_refused() -> None:
    wal = two_batches()
    wal.data[10] ^= 1
    walk, batches = walked(log_of(wal), current("running", file=1))
    assert (walk.verdict, walk.place, walk.offset, batches) == (LogVerdict.REFUSE, FIRST, 0, [])
    assert "file header is damaged" in walk.reason


def test_a_damaged_header_in_the_middle_of_the_log_is_refused() -> None:
    first = two_batches()
    second = first.next_file()
    second.batch(append_frame(4))
    third = second.next_file(epoch=b"epoch-of-a-third")
    third.batch(append_frame(5))
    second.data[10] ^= 1
    walk, _ = walked(log_of(first, second, third), current("running", file=8))
    assert walk.verdict is LogVerdict.REFUSE


def test_the_first_file_without_a_header_is_cut_when_nothing_was_promised() -> None:
    for content in (b"", b"x" * 20, bytes(4096), encode_file_header(two_batches().header)[:50]):
        disk = log_of()
        disk.write_file(PATHS.wal_file(1), content)
        walk, batches = walked(disk)
        assert walk.verdict is LogVerdict.CUT
        assert (walk.files, walk.position, walk.ordinal, batches) == ([], 0, 1, [])


def test_a_header_that_names_another_ordinal_than_the_file_is_no_header() -> None:
    first = two_batches()
    second = first.next_file()
    disk = log_of(first, second)
    disk.rename(PATHS.wal_file(6), PATHS.wal_file(7))
    files = open_wal_files(disk, PATHS)
    assert files[1].header is None
    assert "first ordinal 6 does not match the file name" in files[1].damage


def test_a_log_that_does_not_reach_back_to_its_start_is_refused() -> None:
    first = two_batches()
    with pytest.raises(UnreadableLog, match="no snapshot to start from: its first file is " + wal_name(6)):
        walked(log_of(first.next_file()))


def test_a_missing_file_that_current_names_is_refused() -> None:
    with pytest.raises(UnreadableLog, match=f"CURRENT names {wal_name(6)}, which is missing"):
        walked(log_of(two_batches()), current("running", file=6))


def test_a_current_without_any_file_is_refused() -> None:
    with pytest.raises(UnreadableLog, match="which is missing"):
        walked(log_of(), current("clean"))


def test_a_missing_file_in_the_middle_is_refused() -> None:
    first = two_batches()
    second = first.next_file()
    second.batch(append_frame(4))
    third = second.next_file(epoch=b"epoch-of-a-third")
    third.batch(append_frame(5))
    third.batch(append_frame(6), synced=third.end)
    assert walked(log_of(first, third))[0].verdict is LogVerdict.REFUSE
    assert walked(log_of(first, third), current("running", file=8))[0].verdict is LogVerdict.REFUSE


def test_a_file_shorter_than_its_header_says_is_read_as_if_zeros_followed_and_reported() -> None:
    wal = two_batches()
    disk = log_of(wal)
    disk.write_file(PATHS.wal_file(1), bytes(wal.data))
    walk, batches = walked(disk)
    assert (walk.verdict, walk.is_short, len(batches)) == (LogVerdict.END, True, 2)


def test_names_that_are_no_wal_files_are_passed_over() -> None:
    disk = log_of(two_batches())
    for name in ("CURRENT", "spare-1.log", "notes.txt", "wal-1.log"):
        disk.write_file(f"{PATHS.wal}/{name}", b"?")
    assert [file.name for file in open_wal_files(disk, PATHS)] == [FIRST]


def test_a_file_of_an_unknown_version_is_refused_by_name() -> None:
    wal = two_batches()
    disk = log_of(wal)
    header = bytearray(wal.data[:FILE_HEADER_BYTES])
    payload = header[38:-8]
    payload[8:12] = (VERSION + 1).to_bytes(4, "little")
    newer = encode_frame(FrameType.FILE_HEADER, ts=1, payload=bytes(payload))
    disk.write_file(PATHS.wal_file(1), newer + bytes(wal.data[FILE_HEADER_BYTES:]))
    with pytest.raises(UnreadableLog, match=f"{FIRST}: WAL format version 2"):
        open_wal_files(disk, PATHS)
    assert not disk.open_files
