from __future__ import annotations

from typing import Any

import pytest

from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import IDENTITY, PATHS
from tests.harness.shard.wal_bytes import WalBytes, append_frame
from topicsd.disk.layout import wal_name
from topicsd.log.current_file import Current, read_current, write_current
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.files import LogFiles
from topicsd.log.reader import WalBatch
from topicsd.log.recovery import Recovery, RecoveryRefused, RecoveryResult, heads_are_exact
from topicsd.log.walk import UnreadableLog
from topicsd.log.writer import LogEnd

FIRST = wal_name(1)


class Recovering:
    """A shard's directory with these files, and one recovery of it."""

    def __init__(self, *wals: WalBytes, disk: MemoryDisk | None = None, **current: Any) -> None:
        if disk is None:
            disk = MemoryDisk(traced=True)
            disk.make_dirs(PATHS.wal)
            disk.make_dirs(PATHS.quarantine)
            for wal in wals:
                wal.put(disk, PATHS)
            if current:
                self.write_current(disk, **current)
        self.disk = disk
        self.files = LogFiles(disk)
        self.recovery = Recovery(disk, PATHS, IDENTITY, self.files)
        self.batches: list[tuple[int, bytes]] = []

    def write_current(self, disk: MemoryDisk, **fields: Any) -> None:
        placed = disk.stat(PATHS.wal_file(fields["file"]))
        boot = {"boot_id": disk.boot_id(), "device": placed.device, "wal_inode": placed.inode}
        write_current(disk, PATHS.current, Current(**{**boot, **fields}))

    def run(self) -> RecoveryResult:
        def note(batch: WalBatch, position: int) -> None:
            self.batches.append((position, batch.buffer[batch.start : batch.end]))

        return self.recovery.run(note)

    def names(self, directory: str = PATHS.wal) -> list[str]:
        return self.disk.list_dir(directory)


def wal_of(*payloads: bytes, **fields: Any) -> WalBytes:
    wal = WalBytes(**fields)
    for seq, payload in enumerate(payloads, 1):
        wal.batch(append_frame(seq, payload))
    return wal


def test_an_empty_shard_begins_at_the_start_and_leaves_no_file() -> None:
    recovering = Recovering()
    recovered = recovering.run()
    assert (recovered.end, recovered.is_finished) == (LogEnd(0, 1, 0), True)
    assert recovering.names() == []


def test_the_batches_are_handed_out_with_their_positions_and_can_be_read_from_the_files() -> None:
    wal = wal_of(b"first", b"second")
    recovering = Recovering(wal, state="clean", file=1, end=wal.end)
    recovered = recovering.run()
    first, second = append_frame(1, b"first"), append_frame(2, b"second")
    positions = [position for position, _ in recovering.batches]
    assert [frames for _, frames in recovering.batches] == [first, second]
    assert recovering.files.read(positions[1], positions[1] + len(second)) == second
    assert recovered.end == LogEnd(wal.end - FILE_HEADER_BYTES, 5, wal.chain)
    assert (recovered.heads_exact, recovered.is_finished) == (True, True)


def test_a_start_behind_a_clean_end_syncs_and_distrusts_nothing() -> None:
    wal = wal_of(b"first")
    recovering = Recovering(wal, state="clean", file=1, end=wal.end)
    recovering.disk.trace = []
    recovering.run()
    assert {name for name, _ in recovering.disk.trace} <= {"sync_dir"}


def test_a_recovery_writes_into_no_file_of_the_log() -> None:
    wal = wal_of(b"first", b"second")
    wal.data += b"torn"
    recovering = Recovering(wal, state="running", file=1)
    before = recovering.disk.read_file(PATHS.wal_file(1))
    recovering.run()
    assert recovering.disk.read_file(PATHS.wal_file(1)) == before


def test_what_was_cut_off_is_kept_in_quarantine_once() -> None:
    wal = wal_of(b"first")
    stop = wal.end
    wal.data += b"torn tail" + bytes(100) + b"!"
    recovering = Recovering(wal, state="running", file=1)
    recovering.run()
    (kept,) = recovering.names(PATHS.quarantine)
    assert kept.startswith(f"{FIRST}.at-{stop}.")
    assert recovering.disk.read_file(PATHS.quarantine_file(kept)) == b"torn tail" + bytes(100) + b"!"
    again = Recovering(disk=recovering.disk)
    again.run()
    assert again.names(PATHS.quarantine) == [kept]
    assert again.batches == recovering.batches


def test_two_tails_that_were_cut_at_one_place_are_both_kept() -> None:
    wal = wal_of(b"first")
    stop = wal.end
    recovering = Recovering(wal, state="running", file=1)
    tails = [b"one torn tail", b"and another!!"]
    for tail in tails:
        wal.data[stop:] = tail
        wal.put(recovering.disk, PATHS)
        Recovering(disk=recovering.disk).run()
    kept = [
        recovering.disk.read_file(PATHS.quarantine_file(name)) for name in recovering.names(PATHS.quarantine)
    ]
    assert sorted(kept) == sorted(tails)


def test_a_file_behind_the_cut_goes_to_quarantine_whole_and_never_over_another() -> None:
    first = wal_of(b"first", b"second")
    second = first.next_file()
    second.batch(append_frame(3))
    first.data[first.batches[1][0] + 5] ^= 1
    recovering = Recovering(first, second, state="running", file=1)
    name, content = wal_name(5), second.padded()
    recovering.disk.write_file(PATHS.quarantine_file(f"{name}.1"), b"of an earlier recovery")
    recovering.run()
    assert recovering.names() == ["CURRENT", FIRST]
    assert [file.path for file in recovering.disk.open_files.values()] == [PATHS.wal_file(1)]
    assert recovering.disk.read_file(PATHS.quarantine_file(f"{name}.1")) == b"of an earlier recovery"
    assert recovering.disk.read_file(PATHS.quarantine_file(f"{name}.2")) == content


def test_damage_in_front_of_synced_data_ends_the_start_with_nothing_changed() -> None:
    wal = wal_of(b"first", b"second")
    start, end = wal.batches[1]
    wal.batch(append_frame(3), synced=end)
    wal.data[start + 5] ^= 1
    recovering = Recovering(wal, state="running", file=1)
    tree = recovering.disk.tree()
    with pytest.raises(RecoveryRefused, match=rf"{FIRST}: damaged at offset {start}, before synced"):
        recovering.run()
    assert recovering.disk.tree() == tree
    assert not recovering.disk.open_files


def test_what_a_run_was_making_when_it_ended_is_dropped_and_nothing_else() -> None:
    wal = wal_of(b"first")
    recovering = Recovering(wal, state="clean", file=1, end=wal.end)
    for name in ("spare-3.log", "CURRENT.tmp", f"{FIRST}.tmp", "notes.txt"):
        recovering.disk.write_file(f"{PATHS.wal}/{name}", b"?")
    recovering.run()
    assert recovering.names() == ["CURRENT", "notes.txt", FIRST]


@pytest.mark.parametrize("changes", [{"shard": 1}, {"instance": b"another-instance"}])
def test_a_log_of_another_shard_or_directory_is_refused(changes: dict[str, Any]) -> None:
    wal = wal_of(b"first", **changes)
    recovering = Recovering(wal, state="clean", file=1, end=wal.end)
    with pytest.raises(UnreadableLog, match="belongs to shard"):
        recovering.run()
    assert recovering.batches == []


@pytest.mark.parametrize(
    ("state", "is_same_place", "exact"),
    [
        ("clean", True, True),
        ("clean", False, True),
        ("running", True, True),
        ("running", False, False),
        ("sync_failed", True, False),
        ("sync_failed", False, False),
    ],
)
def test_heads_are_exact_after_a_clean_end_or_on_the_same_machine(
    state: Any, is_same_place: bool, exact: bool
) -> None:
    current = Current(state=state, file=1, boot_id="boot")
    assert heads_are_exact(current, True, is_same_place) is exact
    assert heads_are_exact(current, False, is_same_place) is True
    assert heads_are_exact(None, True, is_same_place) is False
    assert heads_are_exact(None, False, is_same_place) is True


@pytest.mark.parametrize("end", ["after_process_kill", "after_reboot", "copied"])
def test_a_running_current_proves_nothing_on_another_boot_or_in_a_copy(end: str) -> None:
    wal = wal_of(b"first")
    template = Recovering(wal, state="running", file=1)
    recovered = Recovering(disk=getattr(template.disk, end)()).run()
    assert recovered.heads_exact is (end == "after_process_kill")
    assert not recovered.is_finished


def test_a_missing_current_is_read_in_the_most_careful_way() -> None:
    recovering = Recovering(wal_of(b"first"))
    recovered = recovering.run()
    assert (recovered.heads_exact, recovered.is_finished, len(recovering.batches)) == (False, False, 1)


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_an_unreadable_current_is_logged_with_its_consequence(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    recovering = Recovering(wal_of(b"first"), state="running", file=1)
    if damage == "missing":
        recovering.disk.unlink(PATHS.current)
    else:
        recovering.disk.flip(PATHS.current, 20)
    recovering.run()
    (line,) = [one.getMessage() for one in caplog.records]
    consequence = "the log is read from the disk itself, and heads resume at their ceilings"
    assert line == f"{PATHS.current}: {damage}: {consequence}"


def test_the_first_start_logs_nothing_about_current(caplog: pytest.LogCaptureFixture) -> None:
    Recovering().run()
    assert not caplog.records


def test_a_file_that_was_cut_from_outside_has_no_exact_head() -> None:
    wal = wal_of(b"first")
    recovering = Recovering(wal, state="clean", file=1, end=wal.end)
    recovering.disk.write_file(PATHS.wal_file(1), bytes(wal.data))
    recovering.write_current(recovering.disk, state="clean", file=1, end=wal.end)
    assert recovering.run().heads_exact is False


def test_settling_says_that_the_log_ends_here_and_the_next_start_believes_it() -> None:
    wal = wal_of(b"first")
    wal.data += b"torn"
    recovering = Recovering(wal, state="running", file=1)
    recovering.run()
    recovering.recovery.finish()
    current = read_current(recovering.disk, PATHS.current)
    assert current is not None
    assert (current.state, current.file, current.end) == ("clean", 1, wal.batches[0][1])
    recovered = Recovering(disk=recovering.disk.after_reboot()).run()
    assert (recovered.heads_exact, recovered.is_finished) == (True, True)


def test_after_a_failed_sync_the_log_continues_in_copies_and_the_originals_are_kept() -> None:
    wal = wal_of(b"first", b"second")
    recovering = Recovering(wal, state="sync_failed", file=1)
    original, inode = wal.padded(), recovering.disk.stat(PATHS.wal_file(1)).inode
    recovered = recovering.run()
    assert not recovered.heads_exact
    assert recovering.disk.stat(PATHS.wal_file(1)).inode != inode
    (kept,) = recovering.names(PATHS.quarantine)
    assert recovering.disk.read_file(PATHS.quarantine_file(kept)) == original
    assert recovering.disk.stat(PATHS.quarantine_file(kept)).inode == inode
    recovering.recovery.finish()
    again = Recovering(disk=recovering.disk.after_reboot())
    assert again.run().end == recovered.end
    assert again.batches == recovering.batches


def test_after_a_failed_sync_only_what_the_media_has_is_taken() -> None:
    disk = MemoryDisk()
    wal = wal_of(b"synced")
    whole = wal_of(b"synced", b"written, and lost by the kernel")
    template = Recovering(wal, state="sync_failed", file=1)
    disk = template.disk
    fd = disk.open_write(PATHS.wal_file(1))
    disk.pwrite(fd, bytes(whole.data[wal.end :]), wal.end)
    disk.fail("sync_data")
    with pytest.raises(OSError, match="Input/output"):
        disk.sync_data(fd)
    disk.clear_faults()
    assert disk.read_file(PATHS.wal_file(1)) == whole.padded()
    recovering = Recovering(disk=disk.after_process_kill())
    recovering.run()
    assert [frames for _, frames in recovering.batches] == [append_frame(1, b"synced")]
