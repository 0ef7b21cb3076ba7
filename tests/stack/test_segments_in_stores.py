"""One suite over {no store, a folder, S3}: a shard answers the same wherever its segments are."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from shared.settings.store_url import store_folder
from tests.harness.shard.one_shard import RealShard, record
from tests.stack.servers import CREDENTIALS, S3Server
from topicsd.disk.fs import RealFs
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.upkeep import upkeep
from topicsd.engine.upkeep.upkeep import ROUND_SECONDS
from topicsd.segment.entry import COLD, HOT
from topicsd.store.open_store import open_store

_buckets = itertools.count()


@pytest.fixture(params=["none", "file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    # The clock of these tests stands still while a thread waits.
    monkeypatch.setattr(upkeep, "STORE_RETRY_SECONDS", 0.0)
    if request.param == "none":
        return ""
    if request.param == "file":
        return f"file://{tmp_path}/objects"
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    server: S3Server = request.getfixturevalue("s3")
    return server.url(f"segments-{next(_buckets)}")


def shard(path: Path, url: str) -> RealShard:
    return RealShard(
        path / "data",
        store_url=url,
        segment_max_events=10,
        hot_retain_segments=1,
        reader_grace_ms=0,
        background_bytes_per_second=16 << 30,
    )


def rounds(one: RealShard, count: int = 1) -> None:
    for _ in range(count):
        one.checkpoint()
        one.pass_time(ROUND_SECONDS * 1000 + 1)


def objects(url: str) -> list[str]:
    store = open_store(url, RealFs())
    try:
        return [info.key for info in store.list("")]
    finally:
        store.close()


def test_a_topic_lives_and_ends_the_same_in_every_place(tmp_path: Path, url: str) -> None:
    one = shard(tmp_path, url)
    for number in range(55):
        one.append("t", record("x" * 200 + str(number), tag=f"tag-{number % 3}"))
    rounds(one, 3)
    runs = [run for run in one.topic("t").runs if isinstance(run, SealedRun)]
    assert [run.entry.tier for run in runs] == ([COLD] * 4 if url else [HOT] * 4) + [HOT]
    assert len(list((tmp_path / "data").rglob("topics/*/*.data"))) == (2 if url else 6)
    assert (len(objects(url)) if url else 0) == (12 if url else 0)
    before = one.read("t", limit=1000).records
    assert [json.seq for json in before] == list(range(1, 56))
    for _ in range(2):
        one.restart()
        assert one.read("t", limit=1000).records == before
        assert one.read("t", from_seq=17, limit=5).records == before[17:22]
    assert one.delete("t", tag="tag-0").deleted == 19
    assert one.delete("t", tag="tag-1").deleted == 18
    kept = one.read("t", limit=1000).records
    assert kept == [one_record for one_record in before if one_record.tag == b"tag-2"]
    rounds(one, 6)
    one.restart()
    assert one.read("t", limit=1000).records == kept
    one.delete_topic("t")
    one.append("other", 1)
    for _ in range(3):
        one.append("other", 1)
        rounds(one)
    assert (objects(url) if url else []) == []
    one.shard.close()


@pytest.mark.parametrize("url", ["file", "s3"], indirect=True)
def test_a_lost_folder_of_segments_is_read_from_the_store(tmp_path: Path, url: str) -> None:
    one = shard(tmp_path, url)
    for number in range(35):
        one.append("t", record(number))
    rounds(one, 3)
    one.shard.close()
    for path in (tmp_path / "data").rglob("topics/*/seg-000000000000000*.*"):
        path.unlink()
    one.reopen()
    one.settle()
    assert one.seqs("t") == list(range(1, 36))
    one.shard.close()


@pytest.mark.parametrize("url", ["file", "s3"], indirect=True)
def test_a_store_without_its_address_is_no_damage(tmp_path: Path, url: str) -> None:
    one = shard(tmp_path, url)
    one.append("t", *range(35))
    for _ in range(3):
        one.append("t", *range(10))
        rounds(one)
    one.shard.close()
    folder = store_folder(url)
    if folder:
        Path(folder).rename(tmp_path / "away")
    without = RealShard(tmp_path / "data", store_url=url if folder else "", segment_max_events=10)
    assert without.refused_read("t").code == "store_unavailable"
    without.append("t", 1)
    without.shard.close()
