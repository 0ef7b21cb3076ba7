"""Change bytes of checkpoint files, and remove the files, one at a time: repaired or reported, never wrong.

The log still reaches back beyond the older snapshot, so a damaged snapshot costs nothing. Records that are in
a segment only are either read or reported with their place.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shared.contract.errors import CORRUPT_SEGMENT, Refusal
from shared.contract.reader_options import ReaderOptions
from tests.harness.books.shard_book import ShardBook
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import PATHS, empty_disk
from tests.harness.shard.shard_reader import read_now
from tests.harness.shard.shard_run import ShardRun
from tests.harness.sweeps.attempts import attempt
from tests.harness.sweeps.crash_sweep import DEEP
from topicsd.engine.requests import ReadRequest
from topicsd.log.recovery import RecoveryRefused
from topicsd.log.walk import UnreadableLog

FLIPS = "bit rot, bytes of checkpoints changed"
MASKS = (0x01, 0x80, 0xFF)
STRIDE = 1 if DEEP else 7

Rows = list[tuple[int, bytes, str | None]]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet_log")]


class CheckpointedStore:
    """Two topics with sealed segments, an active one, tags, deletes, and a tail in the log; two snapshots."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.book = ShardBook()
        run = ShardRun(empty_disk(), self.book, self.clock, manner="prompt")
        run.put("f", durability="fsync")
        for name in ("f", "d"):
            run.append(name, *[10] * 10, tags=("a", "b") * 5)
            run.turn()
            run.delete(name, tag="a", before_seq=4)
            run.delete(name, before_seq=2)
        run.settle()
        for _ in range(2):
            run.checkpoint()
            run.settle()
            run.delete("d", tag="b", before_seq=7)
            run.append("d", 20, tags=("a",))
            run.append("f", 20)
            run.settle()
        for _ in range(3):
            run.advance(1200)
        run.end_answered()
        self.disk: MemoryDisk = run.disk.after_process_kill()
        run = self.start(self.disk)
        self.shown = {name: run.contents(name).records for name in run.shard.topic_names()}
        self.states = run.states()

    def start(self, disk: MemoryDisk) -> ShardRun:
        return ShardRun(disk, self.book.copied(), self.clock)

    @property
    def files(self) -> list[str]:
        folders = (PATHS.meta, PATHS.topics)
        return [path for path in self.disk.all_files() if path.startswith(folders)]


@pytest.fixture(scope="module")
def store() -> CheckpointedStore:
    return CheckpointedStore()


def answers(run: ShardRun, name: str) -> tuple[Rows, list[Refusal]]:
    """All that can be read of a topic, continuing after damaged records."""
    rows: Rows = []
    refusals: list[Refusal] = []
    cursor = 0
    while True:
        answer = read_now(run.shard.state, name, ReadRequest(cursor, ReaderOptions(limit=7)))
        if isinstance(answer, Refusal):
            assert answer.code == CORRUPT_SEGMENT, answer
            assert answer.detail is not None
            assert answer.detail["segment"]
            refusals.append(answer)
            next_seq = answer.detail["next_from_seq"]
            assert isinstance(next_seq, int)
            assert next_seq > cursor
            cursor = next_seq
            continue
        rows += [(one.seq, one.data, one.tag.decode() or None) for one in answer.records]
        if answer.caught_up:
            return rows, refusals
        cursor = answer.next_from_seq


def judge(store: CheckpointedStore, disk: MemoryDisk, path: str) -> str:
    """Return `refused`, `reported` or `right`; anything else is wrong."""
    try:
        run = store.start(disk)
    except (RecoveryRefused, UnreadableLog) as error:
        return "refused" if PATHS.root in str(error) else f"refused without a place: {error}"
    outcome = "right"
    assert run.shard.topic_names() == list(store.shown)
    for name, rows in store.shown.items():
        readable, refusals = answers(run, name)
        state, expected = run.states()[name], store.states[name]
        assert (state.head_seq, state.evict_floor, state.count) == (
            expected.head_seq,
            expected.evict_floor,
            expected.count,
        )
        missing = [row for row in rows if row not in readable]
        assert [row for row in readable if row not in rows] == [], "a record never written, or deleted"
        reported = {
            seq
            for refusal in refusals
            for seq in range(refusal.detail["first_seq"], refusal.detail["last_seq"] + 1)  # type: ignore
        }
        assert {seq for seq, _, _ in missing} <= reported, f"seqs of {name} are missing without an error"
        outcome = "reported" if refusals else outcome
    # Later writes are correct, and checkpoints keep the log small.
    run.append("d", 5)
    run.settle()
    assert run.calls[-1].answer.first_seq == store.states["d"].head_seq + 1
    run.checkpoint()
    run.settle()
    assert run.shard.checkpoints.failure is None
    run.close()
    return outcome


def _flips(store: CheckpointedStore, path: str) -> Iterator[tuple[int, int]]:
    size = len(store.disk.read_file(path))
    for offset in {*range(0, size, STRIDE), *range(min(size, 48)), *range(max(0, size - 16), size)}:
        yield offset, MASKS[offset % len(MASKS)]


@pytest.mark.parametrize("suffix", ["bin", "json", "data", "idx", "tags", "del"])
def test_a_changed_byte_is_repaired_or_reported(store: CheckpointedStore, suffix: str) -> None:
    outcomes = []
    for path in (path for path in store.files if path.endswith(f".{suffix}")):
        for offset, mask in _flips(store, path):
            with attempt(FLIPS, f"{path} {offset} {mask}"):
                disk = store.disk.after_process_kill()
                disk.flip(path, offset, mask)
                outcomes.append(judge(store, disk, path))
    assert outcomes
    if suffix in ("bin", "json", "idx", "tags"):
        assert set(outcomes) == {"right"}
    elif suffix == "del":
        assert set(outcomes) <= {"right", "refused"}
    else:
        assert "reported" in outcomes


def test_a_missing_file_is_repaired_or_reported(store: CheckpointedStore) -> None:
    for path in store.files:
        with attempt(FLIPS, f"{path} is missing"):
            disk = store.disk.after_process_kill()
            disk.unlink(path)
            outcome = judge(store, disk, path)
            if path.endswith((".bin", ".json", ".idx", ".tags")):
                assert outcome == "right", path
            else:
                assert outcome in ("reported", "refused") or not path.endswith(".data"), path
