from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.runtime.disk_thread import Threads
from shared.settings.setting import AUTO
from shared.settings.settings import Settings
from tests.harness.shard.shard_reader import read_now
from topicsd.disk.dir_lock import DirectoryInUse
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import LayoutError, read_layout, shard_paths
from topicsd.engine.requests import AppendAnswer, AppendRequest, NewRecord, ReadAnswer, ReadRequest
from topicsd.engine.shard import Shard, open_shard
from topicsd.engine.write.append import append
from topicsd.log.recovery import RecoveryRefused


async def appended(shard: Shard, topic: str, data: bytes) -> AppendAnswer:
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    append(shard.state, topic, AppendRequest([NewRecord(msgspec.Raw(data))]), answer.set_result)
    result = await answer
    assert isinstance(result, AppendAnswer)
    return result


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)


def run(script: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await script()

    asyncio.run(main())


def test_a_new_directory_is_made_and_what_was_written_is_there_the_next_time(tmp_path: Path) -> None:
    data_dir = str(tmp_path / "deep" / "down")

    async def script() -> None:
        shard = open_shard(data_dir)
        assert (await appended(shard, "orders", b'{"n":1}')).first_seq == 1
        shard.close()
        shard = open_shard(data_dir)
        assert (await appended(shard, "orders", b'{"n":2}')).first_seq == 2
        answer = read_now(shard.state, "orders", ReadRequest())
        assert isinstance(answer, ReadAnswer)
        assert [record.data for record in answer.records] == [b'{"n":1}', b'{"n":2}']
        shard.close()

    run(script)
    layout = read_layout(RealFs(), data_dir)
    assert layout is not None
    assert layout.shards == 1


@pytest.mark.parametrize(("shards", "made"), [(3, 3), (AUTO, len(os.sched_getaffinity(0)))])
def test_a_new_directory_gets_the_shards_that_the_settings_say(
    tmp_path: Path, shards: int, made: int
) -> None:
    async def script() -> None:
        open_shard(str(tmp_path), made - 1, settings=Settings(shards=shards)).close()
        with pytest.raises(LayoutError, match=f"must be from 0 to {made - 1}, the shards of .*, got {made}"):
            open_shard(str(tmp_path), made)

    run(script)


def test_a_shard_is_opened_once_and_a_refused_one_leaves_nothing_behind(tmp_path: Path) -> None:
    data_dir = str(tmp_path)

    async def script() -> None:
        shard = open_shard(data_dir)
        await appended(shard, "orders", b"1")
        threads = threading.active_count()
        with pytest.raises(DirectoryInUse):
            open_shard(data_dir)
        shard.close(checkpoint=False)
        flip_a_byte(Path(shard_paths(data_dir, 0).wal_file(1)))
        for _ in range(2):
            with pytest.raises(RecoveryRefused, match=r"wal-0000000000000001\.log: damaged at offset 118"):
                open_shard(data_dir)
        assert threading.active_count() == threads - len(Threads._fields)

    run(script)
