from __future__ import annotations

from contextlib import suppress
from random import Random

from tests.harness.machine.faults import PowerCut
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import PATHS
from tests.harness.shard.wal_bytes import EPOCH, WalBytes, append_frame
from topicsd.log.rescue_copy import make_rescue_copy
from topicsd.log.walk import LogVerdict, Walk, open_wal_files, walk_log

PATH = PATHS.wal_file(1)


def written() -> tuple[MemoryDisk, WalBytes]:
    wal = WalBytes()
    wal.batch(append_frame(1, b"first"), append_frame(2))
    wal.batch()
    wal.batch(append_frame(3, b"last"))
    disk = MemoryDisk(traced=True)
    wal.put(disk, PATHS)
    return disk, wal


def walked(disk: MemoryDisk) -> tuple[Walk, list[bytes]]:
    frames: list[bytes] = []
    walk = walk_log(
        disk,
        open_wal_files(disk, PATHS),
        None,
        lambda batch, position: frames.append(batch.buffer[batch.start : batch.end]),
    )
    return walk, frames


def test_the_copy_has_the_same_batches_at_the_same_places_under_an_epoch_of_its_own() -> None:
    disk, wal = written()
    wal.data += b"a torn tail that stays behind"
    wal.put(disk, PATHS)
    before, frames = walked(disk)
    make_rescue_copy(disk, PATHS, before.files[0])
    after, copied = walked(disk)
    assert copied == frames
    assert (after.position, after.ordinal, after.chain) == (before.position, before.ordinal, before.chain)
    assert after.verdict is LogVerdict.END
    (file,) = after.files
    assert file.end == before.files[0].end
    assert file.wal_file.header is not None
    assert file.wal_file.header.epoch != EPOCH
    assert (file.wal_file.size_bytes, after.is_short) == (file.end, False)


def test_the_copy_is_on_the_disk_and_the_original_has_its_name_before_they_change_places() -> None:
    disk, wal = written()
    walk, _ = walked(disk)
    disk.trace = []
    make_rescue_copy(disk, PATHS, walk.files[0])
    calls = [name for name, _ in disk.trace if name != "pwrite"]
    assert calls == ["create", "sync_data", "link", "sync_dir", "rename", "sync_dir"]
    (kept,) = disk.list_dir(PATHS.quarantine)
    assert disk.read_file(PATHS.quarantine_file(kept)) == wal.padded()


def test_a_crash_anywhere_leaves_the_same_log_and_it_can_be_copied_again() -> None:
    disk, wal = written()
    walk, frames = walked(disk)
    start = disk.calls
    make_rescue_copy(disk, PATHS, walk.files[0])
    for cut_after in range(disk.calls - start):
        for seed in range(10):
            other, _ = written()
            walk, _ = walked(other)
            other.cut_power_after(cut_after)
            with suppress(PowerCut):
                make_rescue_copy(other, PATHS, walk.files[0])
            survivor = other.after_power_cut(Random(seed))
            again, batches = walked(survivor)
            assert batches == frames
            make_rescue_copy(survivor, PATHS, again.files[0])
            assert walked(survivor)[1] == frames
            kept = survivor.list_dir(PATHS.quarantine)
            assert wal.padded() in [survivor.read_file(PATHS.quarantine_file(name)) for name in kept]
