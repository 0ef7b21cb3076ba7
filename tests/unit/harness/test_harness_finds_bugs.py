"""The harness as a whole: a correct toy log passes every cut, and each common bug in it is detected."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from random import Random

import pytest

from tests.harness.books.ledger import Ledger
from tests.harness.books.ledger_entries import Request, TopicContents
from tests.harness.machine.faults import PowerCut
from tests.harness.machine.memory_disk import MemoryDisk

OUTCOMES = 12


class ToyLog:
    """A log of fsync requests in one file: u16 length, crc32, payloads of 600 bytes. Recovery copies it."""

    def __init__(self, disk: MemoryDisk, mistake: str | None) -> None:
        self._disk = disk
        self._mistake = mistake
        self.payloads: list[bytes] = []
        old = disk.list_dir("/log")
        content = b""
        if "log" in old:
            fd = disk.open_read("/log/log")
            disk.drop_cache(fd)
            content = disk.pread(fd, 1 << 20, 0)
            disk.close(fd)
        if "new" in old:
            disk.unlink("/log/new")
        self._size = self._parse(content)
        self._fd = disk.create("/log/new")
        disk.allocate(self._fd, 16384)
        disk.pwrite(self._fd, content[: self._size], 0)
        disk.sync_data(self._fd)
        disk.rename("/log/new", "/log/log")
        if mistake != "no sync of the names":
            disk.sync_dir("/log")

    def _parse(self, content: bytes) -> int:
        at = 0
        while size := int.from_bytes(content[at : at + 2], "little"):
            body = content[at + 6 : at + 6 + size]
            sum_is_right = zlib.crc32(body) == int.from_bytes(content[at + 2 : at + 6], "little")
            if not sum_is_right and self._mistake != "no checksum":
                break
            self.payloads += [body[start : start + 600] for start in range(0, size, 600)]
            at += 6 + size
        return at

    def append(self, payloads: list[bytes]) -> int:
        body = b"".join(payloads)
        frame = len(body).to_bytes(2, "little") + zlib.crc32(body).to_bytes(4, "little") + body
        self._disk.pwrite(self._fd, frame, self._size)
        try:
            if self._mistake != "no sync of the file":
                self._disk.sync_data(self._fd)
        except OSError:
            if self._mistake != "acks behind a failed sync":
                raise
            self._disk.sync_data(self._fd)
        first_seq = len(self.payloads) + 1
        self._size += len(frame)
        self.payloads += payloads
        return first_seq


def _shown(log: ToyLog) -> TopicContents:
    records: list[tuple[int, bytes, str | None]] = [
        (seq, data, None) for seq, data in enumerate(log.payloads, 1)
    ]
    return TopicContents(head_seq=len(records), records=records)


def _played(mistake: str | None, disk: MemoryDisk) -> tuple[Ledger, bool]:
    """Send four requests of one to three records; return the ledger and whether the power held."""
    ledger = Ledger()
    ledger.topic("t", "fsync")
    request: Request | None = None
    try:
        log = ToyLog(disk, mistake)
        for number in range(4):
            request = ledger.sent("t", [b"%d.%d" % (number, index) * 200 for index in range(1 + number % 3)])
            ledger.acked(request, log.append(request.payloads))
    except PowerCut:
        return ledger, False
    except OSError:
        if request is not None:
            ledger.errored(request)
    return ledger, True


def _sweep_cuts(mistake: str | None) -> int:
    """Cut at every call with a few outcomes each, recover twice; return the number of runs."""
    tried = 0
    calls = 0
    power_held = False
    while not power_held:
        for seed in range(OUTCOMES):
            disk = _empty_disk()
            disk.cut_power_after(calls)
            ledger, power_held = _played(mistake, disk)
            for _ in range(2):
                disk = disk.after_power_cut(Random(seed))
                ledger.new_generation(machine_failed=True)
                ledger.check({"t": _shown(ToyLog(disk, mistake))})
            tried += 1
        calls += 1
    return tried


def _sweep_failed_syncs(mistake: str | None) -> int:
    """Fail every sync once and restart the process; return the number of runs."""
    tried = 0
    for seed in (None, *range(OUTCOMES)):
        nth = 0
        fired = True
        while fired:
            nth += 1
            disk = _empty_disk()
            fault = disk.fail("sync_data", nth, seed=seed)
            ledger, _ = _played(mistake, disk)
            fired = fault.fired > 0
            ledger.new_generation(machine_failed=True)
            ledger.check({"t": _shown(ToyLog(disk.after_process_kill(), mistake))})
            tried += 1
    return tried


def _empty_disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_dirs("/log")
    return disk


def test_a_correct_log_passes_every_cut_and_every_failed_sync() -> None:
    assert _sweep_cuts(None) > 100
    assert _sweep_failed_syncs(None) > 50


@pytest.mark.parametrize(
    ("mistake", "sweep", "verdict"),
    [
        ("no sync of the file", _sweep_cuts, "are missing: "),
        ("no sync of the names", _sweep_cuts, "are missing: "),
        ("no checksum", _sweep_cuts, "never sent"),
        ("acks behind a failed sync", _sweep_failed_syncs, "are missing: "),
    ],
)
def test_each_common_bug_is_detected(mistake: str, sweep: Callable[[str | None], int], verdict: str) -> None:
    with pytest.raises(AssertionError, match=verdict):
        sweep(mistake)
