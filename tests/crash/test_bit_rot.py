"""Change each byte of every file of a small store in turn: repaired or reported, never a wrong result."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness.shard.shard_driver import DATA_DIR, PATHS
from tests.harness.shard.shard_run import ShardRun
from tests.harness.sweeps.attempts import attempt
from tests.harness.sweeps.crash_sweep import DEEP
from tests.harness.sweeps.small_store import ENDS, SmallStore
from topicsd.disk.layout import LayoutError, read_layout
from topicsd.log.batch_end import BATCH_END_BYTES
from topicsd.log.file_header import FILE_HEADER_BYTES
from topicsd.log.frame import CHECKSUM_BYTES
from topicsd.log.recovery import RecoveryRefused
from topicsd.log.walk import UnreadableLog

FLIPS = "bit rot, bytes changed"
MASKS = (0x01, 0x80, 0xFF)
# Of the zeros behind the log, those next to it, and then some.
TAIL_BYTES = 64
TAIL_STRIDE = 97

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet_log")]


def _flips(store: SmallStore, path: str) -> Iterator[tuple[int, int]]:
    """(offset, mask) for every byte that was written, the fixed parts with more than one mask."""
    size = len(store.disk.read_file(path))
    end = store.data_end(path)
    for offset in range(size if path == PATHS.current else end):
        is_fixed = offset < FILE_HEADER_BYTES or end - offset <= 2 * BATCH_END_BYTES or path == PATHS.current
        for mask in MASKS if DEEP or is_fixed else (MASKS[offset % len(MASKS)],):
            yield offset, mask
    if path != PATHS.current:
        for offset in [*range(end, min(size, end + TAIL_BYTES)), *range(end, size, TAIL_STRIDE), size - 1]:
            if offset < size:
                yield offset, MASKS[offset % len(MASKS)]


def _start(store: SmallStore, path: str, offset: int, mask: int) -> ShardRun | str:
    """The shard on the changed store, or why it does not start."""
    disk = store.disk.after_process_kill()
    disk.flip(path, offset, mask)
    book = store.book.copied()
    # What is lost of class disk has to be reported, and class fsync is not lost.
    book.ledger.new_generation(machine_failed=True)
    try:
        run = ShardRun(disk, book, store.clock)
    except (RecoveryRefused, UnreadableLog) as error:
        return str(error)
    run.check(exact=False)
    return run


@pytest.mark.parametrize("end", ENDS)
def test_a_changed_byte_of_the_log_is_repaired_or_refused_with_its_place(end: str) -> None:
    store = SmallStore(end)
    refused = whole = 0
    for path in store.wal_files:
        for offset, mask in _flips(store, path):
            with attempt(FLIPS, f"_start(SmallStore({end!r}), {path!r}, {offset}, {mask})"):
                outcome = _start(store, path, offset, mask)
                if isinstance(outcome, str):
                    refused += 1
                    assert PATHS.wal in outcome
                    assert "offset" in outcome
                    # The checksum that the log ends with may end with bytes that are zero.
                    assert offset < store.data_end(path) + CHECKSUM_BYTES, "nothing was written there"
                else:
                    whole += 1
                    recovered = outcome.all_contents()
                    for name, expected in store.shown.items():
                        assert recovered[name].records == expected.records, "a synced record is missing"
    assert refused > 10 * whole / 9
    assert whole > TAIL_BYTES


@pytest.mark.parametrize("end", ENDS)
def test_a_changed_byte_of_current_costs_no_record(end: str) -> None:
    store = SmallStore(end)
    for offset, mask in _flips(store, PATHS.current):
        with attempt(FLIPS, f"_start(SmallStore({end!r}), CURRENT, {offset}, {mask})"):
            outcome = _start(store, PATHS.current, offset, mask)
            assert isinstance(outcome, ShardRun), outcome
            recovered = outcome.all_contents()
            for name, expected in store.shown.items():
                assert recovered[name].records == expected.records
                # How the last run ended is unknown, but the ceilings had come down.
                assert recovered[name].head_seq == expected.head_seq


def test_a_changed_byte_of_the_layout_is_reported_or_harmless() -> None:
    store = SmallStore("clean stop")
    path = f"{DATA_DIR}/LAYOUT.json"
    whole = read_layout(store.disk, DATA_DIR)
    harmless = 0
    for offset in range(len(store.disk.read_file(path))):
        for mask in MASKS:
            with attempt(FLIPS, f"LAYOUT.json {offset} {mask}"):
                disk = store.disk.after_process_kill()
                disk.flip(path, offset, mask)
                try:
                    layout = read_layout(disk, DATA_DIR)
                except LayoutError as error:
                    harmless += path in str(error)
                else:
                    harmless += layout == whole
    assert harmless == len(MASKS) * len(store.disk.read_file(path))
