"""Files that a shard drops, rewrites or moves between a plan and its tasks, or while a task reads them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtest.engine.one_shard import open_shard
from shared.contract.topic_config import TopicConfigPatch
from shared.settings.settings import Settings
from spark.errors import DataLoss
from spark.task import record_batch
from spark.view.trash_store import TrashStore
from tests.harness.shard.one_shard import RealShard, record
from tests.spark.test_damage_and_drops import reader_of, rows_of
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import shard_paths
from topicsd.engine.records.durable_seq import durable_seq
from topicsd.engine.requests import AppendRequest, DeleteRequest, NewRecord
from topicsd.engine.retention.delete import delete_records
from topicsd.engine.shard import Shard
from topicsd.engine.topic_admin import put_topic
from topicsd.engine.upkeep import upkeep
from topicsd.engine.write.append import append
from topicsd.segment.store import LocalStore

RECORDS, A_SEGMENT = 500, 100
FAST = {"segment_max_events": A_SEGMENT, "reader_grace_ms": 0, "background_bytes_per_second": 16 << 30}
EVERYTHING = list(range(1, RECORDS + 1))
READS = 15

Change = Callable[[RealShard], object]


def filled(folder: Path, **settings: Any) -> RealShard:
    """Five sealed segments of a topic; in each of them two records of three are "gone"."""
    shard = RealShard(folder / "data", **FAST, **settings)
    shard.put("orders")
    for seq in EVERYTHING:
        shard.append("orders", record({"n": seq}, tag="kept" if seq % 3 == 0 else "gone"))
    # What is known to be on the disk is said in the log a moment later.
    shard.pass_time(1000)
    shard.checkpoint()
    return shard


def let_go(shard: RealShard) -> None:
    """Files go once no snapshot that is kept names them: there are two."""
    shard.pass_time(61_000)
    for _ in range(4):
        shard.append("others", 1)
        shard.pass_time(100)
        shard.checkpoint()


def drop_the_front(shard: RealShard) -> None:
    shard.delete("orders", before_seq=401)
    let_go(shard)


def rewrite(shard: RealShard) -> None:
    shard.delete("orders", tag="gone")
    let_go(shard)


def delete_topic(shard: RealShard) -> None:
    shard.delete_topic("orders")
    let_go(shard)


def make_anew(shard: RealShard) -> None:
    shard.delete_topic("orders")
    shard.append("orders", 1)
    let_go(shard)


KEPT = [seq for seq in EVERYTHING if seq % 3 == 0]
CHANGES = [
    pytest.param(drop_the_front, list(range(401, RECORDS + 1)), id="dropped"),
    pytest.param(rewrite, KEPT, id="rewritten"),
    pytest.param(delete_topic, [], id="topic deleted"),
    pytest.param(make_anew, [], id="topic made anew"),
    pytest.param(let_go, EVERYTHING, id="nothing"),
]


def seqs_of(rows: Iterator[tuple[int, bytes]]) -> list[int]:
    seqs = []
    for seq, value in rows:
        assert msgspec.json.decode(value) == {"n": seq}
        seqs.append(seq)
    return seqs


def places(folder: Path) -> list[Path]:
    return sorted((folder / "data").rglob("topics/*/seg-*.data"))


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize(("change", "left"), CHANGES)
def test_a_plan_whose_files_went_is_read_as_far_as_it_is_alive(
    tmp_path: Path, change: Change, left: list[int], is_moved: bool
) -> None:
    """Moved to the cold directory too, after the plan; nothing holds the files."""
    shard = filled(tmp_path)
    before = places(tmp_path)
    reader = reader_of(tmp_path / "data")
    partitions = reader.partitions()
    if is_moved:
        (tmp_path / "cold").mkdir()
        shard.settings = Settings(
            **{
                **msgspec.structs.asdict(shard.settings),
                "cold_dir": str(tmp_path / "cold"),
                "hot_retain_segments": 1,
            }
        )
        shard.restart()
        let_go(shard)
        assert len(list((tmp_path / "cold").rglob("*seg-*.data"))) == 4
    change(shard)
    if is_moved or change is not let_go:
        assert len(before) == 5
        assert set(before) - set(places(tmp_path))
    assert seqs_of(rows_of(reader, partitions)) == left
    shard.shard.close()


@pytest.mark.parametrize(("change", "left"), CHANGES)
def test_a_task_that_has_begun_reads_all_that_was_planned(
    tmp_path: Path, change: Change, left: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that the rows of the first segment come before the others are read.
    monkeypatch.setattr(record_batch, "JOINED_RECORDS", 1)
    shard = filled(tmp_path)
    before = places(tmp_path)
    rows = rows_of(reader_of(tmp_path / "data"))
    first = next(rows)
    change(shard)
    if change is not let_go:
        assert set(before) - set(places(tmp_path))
        assert list((tmp_path / "data").rglob("trash/*.data"))
    assert [first[0], *seqs_of(rows)] == EVERYTHING
    # Without a reader the next checkpoint empties the trash.
    let_go(shard)
    assert not list((tmp_path / "data").rglob("trash/*.data"))
    assert seqs_of(rows_of(reader_of(tmp_path / "data", failOnDataLoss="false"))) == left if left else True
    shard.shard.close()


def test_what_a_cap_takes_behind_a_plan_is_loss(tmp_path: Path) -> None:
    shard = filled(tmp_path)
    path = tmp_path / "data"
    readers = [reader_of(path), reader_of(path, failOnDataLoss="false")]
    plans = [reader.partitions() for reader in readers]
    shard.put("orders", cap_records=150)
    let_go(shard)
    with pytest.raises(DataLoss, match=r"read from seq 1, earliest is now 351 \(cap\)"):
        seqs_of(rows_of(readers[0], plans[0]))
    # A segment that is still there is read as it was planned.
    assert seqs_of(rows_of(readers[1], plans[1])) == list(range(301, RECORDS + 1))
    shard.shard.close()


class DroppingFs(RealFs):
    """Each opened file was moved to the trash a moment before."""

    def __init__(self, trash: Path) -> None:
        self._trash = trash

    def open_read(self, path: str) -> int:
        file = Path(path)
        if file.parent != self._trash:
            file.rename(self._trash / f"0000000000000001-0-{file.parent.name}.{file.name}")
        return super().open_read(path)


def test_a_file_that_goes_between_the_look_and_the_opening_is_found(tmp_path: Path) -> None:
    paths = shard_paths(str(tmp_path), 0)
    trash, directory = Path(paths.trash), Path(paths.topics) / "0000000000000007-1024"
    trash.mkdir(parents=True)
    directory.mkdir(parents=True)
    (directory / "seg-0000000000000001.data").write_bytes(b"of a segment")
    store = TrashStore(DroppingFs(trash), paths, None)
    assert store.read_range("topics/0000000000000007-1024/seg-0000000000000001.data", 3, 4) == b"a se"
    store.close()


class CountingFs(RealFs):
    """Counts how often a directory is looked through."""

    listed = 0

    def list_dir(self, path: str) -> list[str]:
        self.listed += 1
        return super().list_dir(path)


def test_what_is_in_the_cold_directory_is_not_looked_for_in_the_trash(tmp_path: Path) -> None:
    key = "topics/0000000000000007-1024/seg-0000000000000001.data"
    cold, fs = LocalStore(RealFs(), str(tmp_path / "cold")), CountingFs()
    cold.put(key, lambda offset, size: b"of a segment"[offset : offset + size], 12)
    store = TrashStore(fs, shard_paths(str(tmp_path / "data"), 0), cold)
    assert not store.exists(key)
    assert fs.listed == 0
    cold.delete(key)
    assert not store.exists(key)
    assert fs.listed == 1
    store.close()
    cold.close()


class BusyShard(threading.Thread):
    """A shard that writes, deletes, checkpoints, rewrites and moves segments without a pause."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._settings = Settings(
            **FAST,
            checkpoint_interval_ms=100,
            wal_file_bytes=1 << 18,
            cold_dir=str(folder / "cold"),
            hot_retain_segments=3,
        )
        self.has_begun, self._ends = threading.Event(), threading.Event()
        self.shard: Shard

    def run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        (self._folder / "data").mkdir()
        (self._folder / "cold").mkdir()
        self.shard = shard = open_shard(str(self._folder / "data"), self._settings)
        loop = asyncio.get_running_loop()
        reply = loop.create_future()
        put_topic(shard.state, "orders", TopicConfigPatch(), reply.set_result)
        shard.log.commit()
        await reply
        self.has_begun.set()
        turn = seq = 0
        while not self._ends.is_set():
            turn, reply = turn + 1, loop.create_future()
            if turn % 10:
                new = [
                    NewRecord(msgspec.Raw(b'{"n":%d}' % n), "kept" if n % 3 == 0 else "gone")
                    for n in range(seq + 1, seq + 21)
                ]
                seq += 20
                append(shard.state, "orders", AppendRequest(new), reply.set_result)
            else:
                delete_records(shard.state, "orders", DeleteRequest(tag="gone"), reply.set_result)
            shard.log.commit()
            await reply
            await asyncio.sleep(0.005)
        shard.close()

    def end(self) -> None:
        self._ends.set()
        self.join()

    @property
    def durable(self) -> int:
        return durable_seq(self.shard.state, self.shard.state.topics["orders"])


def have_moved(folder: Path) -> list[Path]:
    return list((folder / "cold").rglob("*seg-*.data"))


def have_been_rewritten(folder: Path) -> list[Path]:
    return list(folder.rglob("seg-*-1.data"))


def test_reads_beside_a_shard_that_rewrites_and_moves_are_durable_prefixes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "ROUND_SECONDS", 0.05)
    busy = BusyShard(tmp_path)
    busy.start()
    assert busy.has_begun.wait(20)
    path, last, reads = tmp_path / "data", 0, 0
    deadline = time.monotonic() + 30
    try:
        while reads < READS or not (have_moved(tmp_path) and have_been_rewritten(tmp_path)):
            assert time.monotonic() < deadline
            reads += 1
            reader = reader_of(path)
            partitions = reader.partitions()
            durable = busy.durable
            seqs = seqs_of(rows_of(reader, partitions))
            assert seqs == sorted(set(seqs))
            end = seqs[-1] if seqs else 0
            assert last <= end + 2
            assert end <= durable
            assert [seq for seq in seqs if seq % 3 == 0] == list(range(3, end + 1, 3))
            last = end
    finally:
        busy.end()
    end = busy.shard.state.topics["orders"].head
    seqs = seqs_of(rows_of(reader_of(path)))
    assert [seq for seq in seqs if seq % 3 == 0] == list(range(3, end + 1, 3))
