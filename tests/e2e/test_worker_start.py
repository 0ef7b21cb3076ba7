"""A worker that must stop, or loses the supervisor, before it is ready."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from shared.ipc.board import Board, WorkerState
from shared.ipc.handoff import channel_pair, send_drain
from shared.settings.settings import Settings
from tests.harness.output.command_run import PROJECT
from tests.harness.shard.one_shard import RealShard, record
from topicsd.disk.dir_lock import DirLock
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import read_layout, shard_paths
from topicsd.worker.spec import SPEC_VARIABLE, Spec

pytestmark = pytest.mark.slow

RECORDS = 600_000
USED_BYTES_MIN = RECORDS * 46


class Front:
    """The supervisor's side of a worker, under the control of a test."""

    def __init__(self, data_dir: Path) -> None:
        layout = read_layout(RealFs(), str(data_dir))
        assert layout is not None
        self.board = Board.create(1)
        self.slot = self.board.slot(0)
        self.sender, receiver = channel_pair()
        fds = (receiver.fileno(), self.board.fd)
        spec = Spec(
            0, 1, str(data_dir), layout.instance, f"test-{os.getpid()}", *fds, Settings(drain_seconds=1)
        )
        with (data_dir.parent / "log").open("ab") as stderr:
            self.worker = subprocess.Popen(
                [sys.executable, "-m", "topicsd.worker.worker"],
                env={
                    **os.environ,
                    "PYTHONPATH": str(PROJECT),
                    SPEC_VARIABLE: msgspec.json.encode(spec).decode(),
                },
                pass_fds=fds,
                stderr=stderr,
            )
        receiver.close()

    def until(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not what():
            assert self.worker.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def close(self) -> None:
        if self.worker.poll() is None:
            self.worker.kill()
        self.worker.wait()
        self.sender.close()
        self.board.close()
        os.close(self.board.fd)


def go_away(front: Front) -> None:
    front.sender.close()


def ask_to_drain(front: Front) -> None:
    assert send_drain(front.sender)


def terminate(front: Front) -> None:
    front.worker.send_signal(signal.SIGTERM)


def go_away_and_terminate(front: Front) -> None:
    go_away(front)
    terminate(front)


ENDINGS = [go_away, ask_to_drain, terminate, go_away_and_terminate]


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory whose replay takes a while."""
    folder = tmp_path_factory.mktemp("long") / "data"
    shard = RealShard(folder, wal_file_bytes=64 << 20)
    one = record(1)
    for _ in range(RECORDS // 10_000):
        shard.append("t", *[one] * 10_000)
    shard.close(checkpoint=False)
    return folder


@pytest.fixture
def front(long_log: Path) -> Iterator[Front]:
    one = Front(long_log)
    yield one
    one.close()


@pytest.mark.parametrize("end", ENDINGS)
def test_a_replay_stops_when_the_worker_is_asked_to_end(front: Front, end: Callable[[Front], None]) -> None:
    slot = front.slot
    front.until(lambda: slot.replay_done > 0)
    assert slot.state is WorkerState.REPLAYING
    first = slot.beat_ms
    front.until(lambda: slot.replay_done > 4 << 20)
    assert slot.beat_ms > first
    end(front)
    assert front.worker.wait(10) == 0
    assert slot.replay_done < USED_BYTES_MIN // 2 < slot.replay_total
    assert slot.state is WorkerState.GONE


@pytest.mark.parametrize("end", ENDINGS)
def test_a_worker_stops_waiting_for_a_lock_when_it_is_asked_to_end(
    long_log: Path, end: Callable[[Front], None]
) -> None:
    lock = DirLock(RealFs(), shard_paths(str(long_log), 0).lock)
    front = Front(long_log)
    try:
        front.until(lambda: f"process {os.getpid()}" in front.slot.reason)
        first = front.slot.beat_ms
        front.until(lambda: front.slot.beat_ms > first)
        end(front)
        assert front.worker.wait(10) == 0
    finally:
        lock.release()
        front.close()


def test_an_undisturbed_worker_becomes_ready(front: Front) -> None:
    front.until(lambda: front.slot.state is WorkerState.READY)
    assert (front.slot.topics, front.slot.records_live) == (1, RECORDS)
    assert front.slot.reason == ""
    go_away(front)
    assert front.worker.wait(10) == 0
