from __future__ import annotations

from random import Random

import pytest

from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.wal_bytes import EPOCH, WalBytes, append_frame
from topicsd.log import reader
from topicsd.log.batch_end import BATCH_END_BYTES
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.reader import Survey, WalBatch, WalBatchReader, survey


class WatchedDisk(MemoryDisk):
    """Remembers how much was asked for at once."""

    largest_read = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self.largest_read = max(self.largest_read, size)
        return super().pread(fd, size, offset)


def opened(wal: WalBytes) -> tuple[WatchedDisk, int]:
    disk = WatchedDisk()
    disk.write_file("/wal", wal.padded())
    return disk, disk.open_read("/wal")


def read_all(wal: WalBytes) -> tuple[list[WalBatch], WalBatchReader]:
    disk, fd = opened(wal)
    batches = WalBatchReader(disk, fd, wal.header)
    read_batches = []
    while (batch := batches.next()) is not None:
        read_batches.append(batch)
    assert batches.next() is None, "a reader that stopped stays where it is"
    return read_batches, batches


def frames_of(batch: WalBatch) -> bytes:
    return batch.buffer[batch.start : batch.end]


def test_batches_come_in_order_with_their_ordinals_and_places() -> None:
    wal = WalBytes(first_ordinal=100, chain_seed=5)
    wal.batch(append_frame(1), append_frame(2))
    wal.batch(append_frame(3))
    read_batches, batches = read_all(wal)
    assert [(batch.first_ordinal, batch.frame_count) for batch in read_batches] == [(100, 2), (103, 1)]
    assert [frames_of(batch) for batch in read_batches] == [
        append_frame(1) + append_frame(2),
        append_frame(3),
    ]
    assert [batch.offset for batch in read_batches] == [offset for offset, _ in wal.batches]
    assert (batches.offset, batches.ordinal, batches.chain) == (wal.end, 105, wal.chain)


def test_an_empty_batch_is_one() -> None:
    wal = WalBytes()
    wal.batch()
    wal.batch(append_frame(1))
    read_batches, _ = read_all(wal)
    assert [batch.frame_count for batch in read_batches] == [0, 1]


def test_a_file_with_nothing_in_it_has_no_batch() -> None:
    assert read_all(WalBytes())[0] == []
    assert read_all(WalBytes(file_bytes=0))[0] == []


@pytest.mark.parametrize("window_bytes", [1, 7, 64, BATCH_END_BYTES, 300, 1000])
def test_batches_over_the_edges_of_windows_are_found(
    window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "WINDOW_BYTES", window_bytes)
    rng = Random(window_bytes)
    wal = WalBytes(file_bytes=64 << 10)
    written = []
    for seq in range(1, 60):
        frames = [append_frame(seq, rng.randbytes(rng.randrange(500))) for _ in range(rng.randrange(4))]
        wal.batch(*frames)
        written.append(b"".join(frames))
    read_batches, batches = read_all(wal)
    assert [frames_of(batch) for batch in read_batches] == written
    assert batches.offset == wal.end


def test_memory_is_bounded_by_a_window_or_the_largest_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WINDOW_BYTES", 1000)
    wal = WalBytes(file_bytes=200_000)
    for seq in range(1, 40):
        wal.batch(append_frame(seq, b"x" * 2500))
    largest = wal.batch(append_frame(40, b"y" * 9000))
    for seq in range(41, 60):
        wal.batch(append_frame(seq, b"z"))
    disk, fd = opened(wal)
    batches = WalBatchReader(disk, fd, wal.header)
    while batches.next() is not None:
        pass
    assert batches.offset == wal.end
    assert disk.largest_read <= largest[1] - largest[0]


def test_many_small_batches_are_read_with_one_call_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WINDOW_BYTES", 10_000)
    wal = WalBytes(file_bytes=200_000)
    for seq in range(1, 200):
        wal.batch(append_frame(seq))
    disk, fd = opened(wal)
    calls = disk.fail("pread", nth=10**9)
    batches = WalBatchReader(disk, fd, wal.header)
    while batches.next() is not None:
        pass
    assert batches.offset == wal.end
    assert calls.seen <= wal.end // 9000 + 2


def test_a_long_damaged_range_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WINDOW_BYTES", 1000)
    wal = WalBytes(file_bytes=200_000)
    wal.batch(append_frame(1))
    stop = wal.end
    wal.data += b"\xaa" * 150_000
    wal.batch(append_frame(2))
    disk, fd = opened(wal)
    batches = WalBatchReader(disk, fd, wal.header)
    assert batches.next() is not None
    assert batches.next() is None
    assert batches.offset == stop
    assert disk.largest_read <= 1000 + BATCH_END_BYTES


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 0},
        {"offset": FILE_HEADER_BYTES + 1},
        {"length": 0},
        {"length": 1 << 40},
        {"chain": 5},
        {"ordinal": 0},
    ],
)
def test_a_batch_that_does_not_fit_ends_the_log_there(changes: dict[str, int]) -> None:
    wal = WalBytes(first_ordinal=10)
    wal.batch(append_frame(1))
    stop = wal.end
    wal.batch(append_frame(2), **changes)
    wal.batch(append_frame(3))
    read_batches, batches = read_all(wal)
    assert len(read_batches) == 1
    assert batches.offset == stop


def test_an_older_batch_behind_a_newer_one_never_comes_back() -> None:
    failed = WalBytes()
    failed.batch(append_frame(1))
    failed.batch(append_frame(2, b"failed, rewound, and much longer than what took its place"))
    failed.batch(append_frame(3))
    wal = WalBytes()
    wal.batch(append_frame(1))
    wal.batch(append_frame(2, b"new"))
    wal.data += failed.data[wal.end :]
    read_batches, batches = read_all(wal)
    assert [frames_of(batch) for batch in read_batches] == [append_frame(1), append_frame(2, b"new")]
    assert batches.ordinal == 5


def test_a_batch_of_the_same_length_and_another_content_cuts_off_what_followed_the_failed_one() -> None:
    failed = WalBytes()
    failed.batch(append_frame(1, b"aaaa"))
    failed.batch(append_frame(2))
    wal = WalBytes()
    wal.batch(append_frame(1, b"bbbb"))
    wal.data += failed.data[wal.end :]
    read_batches, _ = read_all(wal)
    assert len(read_batches) == 1


def test_a_batch_of_another_file_is_none_of_this() -> None:
    other = WalBytes(epoch=b"f" * 16)
    other.batch(append_frame(1))
    wal = WalBytes()
    wal.data += other.data[FILE_HEADER_BYTES:]
    assert read_all(wal)[0] == []


def test_one_changed_byte_ends_the_log_before_its_batch() -> None:
    wal = WalBytes()
    wal.batch(append_frame(1, b"abc"))
    first_end = wal.end
    wal.batch(append_frame(2, b"def"), append_frame(3))
    whole = bytes(wal.data)
    for offset in range(FILE_HEADER_BYTES, len(whole)):
        wal.data[offset] ^= 0x20
        read_batches, batches = read_all(wal)
        wal.data[offset] ^= 0x20
        assert len(read_batches) == (0 if offset < first_end else 1), f"after a change at {offset}"
        assert batches.offset == (FILE_HEADER_BYTES if offset < first_end else first_end)


def test_a_file_cut_at_every_byte_keeps_its_whole_batches() -> None:
    wal = WalBytes(file_bytes=0)
    for seq in (1, 2, 3):
        wal.batch(append_frame(seq, b"payload"))
    whole = bytes(wal.data)
    for kept in range(FILE_HEADER_BYTES, len(whole) + 1):
        wal.data[:] = whole[:kept]
        read_batches, _ = read_all(wal)
        assert len(read_batches) == sum(end <= kept for _, end in wal.batches)


def test_a_zero_length_ends_the_log_whatever_stands_behind_it() -> None:
    wal = WalBytes()
    wal.batch(append_frame(1))
    stop = wal.end
    wal.batch(append_frame(2))
    wal.data[stop : stop + 4] = bytes(4)
    read_batches, batches = read_all(wal)
    assert (len(read_batches), batches.offset) == (1, stop)


@pytest.mark.parametrize("window_bytes", [100, 1 << 20])
def test_a_payload_that_holds_the_epoch_does_not_fool_the_reader(
    window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "WINDOW_BYTES", window_bytes)
    wal = WalBytes()
    hostile = [EPOCH, EPOCH * 20, bytes(60) + EPOCH + bytes(60), b"x" * 45 + EPOCH]
    for seq, payload in enumerate(hostile, 1):
        wal.batch(append_frame(seq, payload, node=EPOCH, tag=EPOCH))
    read_batches, _ = read_all(wal)
    assert len(read_batches) == len(hostile)


@pytest.mark.parametrize("window_bytes", [100, 1 << 20])
def test_a_payload_that_holds_a_whole_batch_end_of_the_file_does_not_fool_the_reader(
    window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "WINDOW_BYTES", window_bytes)
    wal = WalBytes()
    _, end = wal.batch(append_frame(1))
    stolen = bytes(wal.data[end - BATCH_END_BYTES : end])
    wal.batch(append_frame(2, stolen), append_frame(3, stolen + stolen))
    wal.batch(append_frame(4))
    read_batches, batches = read_all(wal)
    assert [batch.frame_count for batch in read_batches] == [1, 2, 1]
    assert batches.offset == wal.end


def test_lengths_beyond_all_reason_are_not_believed() -> None:
    for length in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x01\x00\x00\x00"):
        wal = WalBytes()
        wal.batch(append_frame(1))
        stop = wal.end
        wal.data += length + b"\x01" * 60
        read_batches, batches = read_all(wal)
        assert (len(read_batches), batches.offset) == (1, stop)


def test_a_survey_of_zeros_finds_the_end_where_it_began() -> None:
    wal = WalBytes()
    wal.batch(append_frame(1), synced=FILE_HEADER_BYTES)
    disk, fd = opened(wal)
    assert survey(disk, fd, EPOCH, wal.end) == Survey(wal.end, 0)


@pytest.mark.parametrize("window_bytes", [1, 50, 1 << 20])
def test_a_survey_finds_the_last_byte_and_the_highest_synced_offset(
    window_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = WalBytes()
    wal.batch(append_frame(1))
    place = wal.end
    wal.data += b"damage, and some room" + bytes(200)
    wal.batch(append_frame(2), synced=500)
    wal.batch(append_frame(3), synced=900)
    wal.batch(append_frame(4), synced=700)
    wal.data += bytes(100) + b"!" + bytes(100)
    disk, fd = opened(wal)
    monkeypatch.setattr(reader, "WINDOW_BYTES", window_bytes)
    assert survey(disk, fd, EPOCH, place) == Survey(wal.end - 100, 900)


def test_a_survey_believes_no_end_that_is_damaged_or_of_another_file() -> None:
    wal = WalBytes()
    place = wal.end
    _, end = wal.batch(append_frame(1), synced=900)
    wal.data[end - 1] ^= 1
    other = WalBytes(epoch=b"f" * 16)
    other.batch(append_frame(1), synced=900)
    wal.data += other.data[FILE_HEADER_BYTES:]
    disk, fd = opened(wal)
    assert survey(disk, fd, EPOCH, place) == Survey(wal.end, 0)
