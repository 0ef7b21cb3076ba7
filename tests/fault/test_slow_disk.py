"""A disk whose syncs do not return for a while: writers wait, and the event loop does not."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from shared.contract.topic_config import TopicConfigPatch
from shared.runtime.clock import SystemClock
from shared.runtime.disk_thread import start_threads
from shared.settings.settings import Settings
from tests.harness.shard.one_shard import record
from tests.harness.shard.shard_driver import IDENTITY, INSTANCE
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import create_data_dir, shard_paths
from topicsd.engine.read import read as reads
from topicsd.engine.requests import AppendAnswer, AppendRequest, ReadAnswer, ReadRequest
from topicsd.engine.shard import Shard
from topicsd.engine.topic_admin import put_topic
from topicsd.engine.write.append import append

SECONDS_MAX = 30


class StallingFs(RealFs):
    """Its syncs return when the test lets them."""

    def __init__(self) -> None:
        self.loop_thread = threading.get_ident()
        self.may_return = threading.Event()
        self.has_stalled = threading.Event()
        self.on_loop: list[str] = []

    def _stall(self, call: str) -> None:
        if threading.get_ident() == self.loop_thread:
            self.on_loop.append(call)
        else:
            self.has_stalled.set()
            assert self.may_return.wait(SECONDS_MAX)

    def allocate(self, fd: int, size: int) -> None:
        self._stall("allocate")
        super().allocate(fd, size)

    def sync_data(self, fd: int) -> None:
        self._stall("sync_data")
        super().sync_data(fd)

    def sync_dir(self, path: str) -> None:
        self._stall("sync_dir")
        super().sync_dir(path)


def opened(folder: Path, fs: RealFs) -> Shard:
    loop = asyncio.get_running_loop()
    return Shard(
        fs,
        SystemClock(),
        loop,
        start_threads(loop, 0),
        shard_paths(str(folder), 0),
        IDENTITY,
        Settings(wal_file_bytes=64 << 10),
        lambda error: None,
    )


def appended(shard: Shard, topic: str, size: int = 10) -> asyncio.Future[Any]:
    answer = asyncio.get_running_loop().create_future()
    append(shard.state, topic, AppendRequest([record("x" * size)]), answer.set_result)
    return answer


def read(shard: Shard, topic: str) -> asyncio.Future[Any]:
    answer = asyncio.get_running_loop().create_future()
    reads.read(shard.state, topic, ReadRequest(from_seq=0), answer.set_result)
    return answer


async def stalled(shard: Shard, fs: StallingFs, append: asyncio.Future[Any]) -> None:
    """The disk stalls, the append waits, reads are answered, and then everything resumes."""
    async with asyncio.timeout(SECONDS_MAX):
        await asyncio.to_thread(fs.has_stalled.wait)
        for _ in range(20):
            await asyncio.sleep(0)
            assert isinstance(await read(shard, "old"), ReadAnswer)
        assert not append.done()
        fs.may_return.set()
        assert isinstance(await append, AppendAnswer)
    assert fs.on_loop == []


def test_the_first_append_after_a_start_holds_no_reader(tmp_path: Path) -> None:
    create_data_dir(RealFs(), str(tmp_path), 1, INSTANCE)

    async def play() -> None:
        shard = opened(tmp_path, RealFs())
        await appended(shard, "old")
        shard.close()
        fs = StallingFs()
        fs.may_return.set()
        shard = opened(tmp_path, fs)
        fs.may_return.clear()
        fs.has_stalled.clear()
        fs.on_loop.clear()
        await stalled(shard, fs, appended(shard, "old"))
        shard.close()

    asyncio.run(play())


def test_a_rotation_without_a_file_made_ahead_holds_no_reader(tmp_path: Path) -> None:
    create_data_dir(RealFs(), str(tmp_path), 1, INSTANCE)

    async def play() -> None:
        fs = StallingFs()
        fs.may_return.set()
        shard = opened(tmp_path, fs)
        put = asyncio.get_running_loop().create_future()
        put_topic(shard.state, "old", TopicConfigPatch(durability="memory"), put.set_result)
        await put
        await appended(shard, "old")
        shard.log.flush()
        fs.may_return.clear()
        fs.has_stalled.clear()
        fs.on_loop.clear()
        await stalled(shard, fs, appended(shard, "old", 100_000))
        shard.close()

    asyncio.run(play())
