"""The start of a worker's shard: what the board shows meanwhile, and how a shutdown ends it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from shared.ipc.board import Board, Slot, WorkerState
from shared.runtime.clock import SystemClock
from shared.runtime.disk_thread import Threads
from shared.settings.settings import Settings
from tests.harness.shard.one_shard import OneShard
from tests.harness.shard.shard_driver import IDENTITY, PATHS
from topicsd.disk.dir_lock import DirLock
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import create_data_dir, shard_paths
from topicsd.engine.shard import Shard
from topicsd.engine.topic_admin import topic_state
from topicsd.log.recovery import PROGRESS_BYTES, OnProgress
from topicsd.worker.spec import Spec
from topicsd.worker.start import ShardStart, StartEnded, StartRefused

INSTANCE = b"shard-start-----"


@pytest.fixture
def slot() -> Iterator[Slot]:
    board = Board.create(1)
    slot = board.slot(0)
    slot.state = WorkerState.STARTING
    yield slot
    board.close()
    os.close(board.fd)


class Start:
    """A start over a real directory, with the number of its heartbeats."""

    def __init__(
        self, folder: Path, slot: Slot, beats_before_end: int = 1 << 30, store_url: str = ""
    ) -> None:
        if not (folder / "LAYOUT.json").exists():
            create_data_dir(RealFs(), str(folder), 1, INSTANCE)
        self.slot = slot
        self.beats = 0
        self.paths = shard_paths(str(folder), 0)
        settings = Settings(wal_file_bytes=64 << 10, store_url=store_url)
        spec = Spec(0, 1, str(folder), INSTANCE.hex(), "test", -1, -1, settings)
        self.one = ShardStart(spec, SystemClock(), slot, self._beat, lambda: self.beats >= beats_before_end)

    def _beat(self) -> None:
        self.beats += 1

    def run(self) -> None:
        async def opened() -> None:
            (await self.one.open(lambda error: None)).close()

        asyncio.run(opened())


def filled(size: int) -> OneShard:
    one = OneShard(wal_file_bytes=256 << 10)
    for _ in range(size >> 16):
        one.append("t", *[b'"%b"' % (b"x" * 1022)] * 64)
    return one


def opened(one: OneShard, on_progress: OnProgress) -> Shard:
    arguments = (PATHS, IDENTITY, one.settings, one.failures.append, on_progress)
    return Shard(one.disk, one.clock, one.loop, Threads(*[one.thread] * len(Threads._fields)), *arguments)


def test_a_replay_reports_its_progress() -> None:
    one = filled(5 << 20)
    one.disk = one.disk.after_process_kill()
    reports: list[tuple[int, int]] = []
    shard = opened(one, lambda done, total: reports.append((done, total)))
    assert topic_state(shard.state, "t").count == (5 << 20) >> 10  # type: ignore[union-attr]
    replayed = [(done, total) for done, total in reports if total]
    # The check of the files before the replay also calls back, without a total.
    assert len(replayed) < len(reports)
    assert len(replayed) >= 5
    assert replayed == sorted(replayed)
    assert len({total for _, total in replayed}) == 1
    assert all(5 << 20 < total < 7 << 20 for _, total in replayed)
    steps = [later - done for (done, _), (later, _) in pairwise(replayed)]
    assert all(PROGRESS_BYTES <= step < PROGRESS_BYTES + (128 << 10) for step in steps)


@pytest.mark.parametrize("after", [0, 3, 8])
def test_a_cancelled_replay_releases_the_directory(after: int) -> None:
    one = filled(3 << 20)
    one.disk = one.disk.after_process_kill()
    calls = 0

    def end(done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise StartEnded

    with pytest.raises(StartEnded):
        opened(one, end)
    one.open(one.disk)
    assert one.state("t").count == (3 << 20) >> 10
    assert one.failures == []


def test_progress_is_published_with_a_heartbeat(tmp_path: Path, slot: Slot) -> None:
    start = Start(tmp_path, slot)
    slot.reason = "waits"
    start.one.progress(3, 12)
    assert (slot.state, slot.replay_done, slot.replay_total) == (WorkerState.REPLAYING, 3, 12)
    assert (start.beats, slot.reason) == (1, "")


def test_a_start_waits_for_a_lock_that_another_process_holds(tmp_path: Path, slot: Slot) -> None:
    start = Start(tmp_path, slot)
    lock = DirLock(RealFs(), start.paths.lock)

    async def wait() -> None:
        opening = asyncio.create_task(start.one.open(lambda error: None))
        await asyncio.sleep(0)
        assert f"process {os.getpid()}" in slot.reason
        assert slot.state is WorkerState.STARTING
        lock.release()
        (await opening).close()

    asyncio.run(wait())


@pytest.mark.slow
def test_a_start_that_waits_for_a_lock_ends_at_a_shutdown(tmp_path: Path, slot: Slot) -> None:
    start = Start(tmp_path, slot, beats_before_end=0)
    lock = DirLock(RealFs(), start.paths.lock)
    with pytest.raises(StartEnded):
        start.run()
    lock.release()


def test_a_log_without_its_beginning_is_refused_with_the_reason(tmp_path: Path, slot: Slot) -> None:
    start = Start(tmp_path, slot)
    Path(start.paths.wal, "wal-0000000000000777.log").write_bytes(b"")
    with pytest.raises(StartRefused, match="does not reach back"):
        start.run()


def test_a_store_that_cannot_be_opened_is_refused_with_the_setting(
    tmp_path: Path, slot: Slot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StartRefused, match=r"az://container: .*Account must be specified") as refused:
        Start(tmp_path, slot, store_url="az://container").run()
    assert "TOPICS_STORE_URL" in refused.value.advice
