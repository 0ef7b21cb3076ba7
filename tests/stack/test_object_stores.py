"""One suite over every kind of store: they do the same."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.runtime.retries import Retries
from tests.stack.servers import CREDENTIALS, S3Server
from topicsd.disk.fs import RealFs
from topicsd.store.block_cache import BlockCache
from topicsd.store.create_object import create_object
from topicsd.store.metered import MeteredStore
from topicsd.store.object_store import ObjectExists, StoreRefused, StoreUnavailable
from topicsd.store.open_store import open_store
from topicsd.store.probe import probe_store

RETRIES = Retries(time.monotonic, time.sleep, 30.0)
_buckets = itertools.count()


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        (tmp_path / "objects").mkdir()
        return f"file://{tmp_path}/objects"
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    server: S3Server = request.getfixturevalue("s3")
    return server.url(f"bucket-{next(_buckets)}")


@pytest.fixture
def store(url: str) -> Iterator[MeteredStore]:
    opened = open_store(url, RealFs())
    yield opened
    opened.close()


def test_a_store_passes_the_probe_and_keeps_nothing_of_it(store: MeteredStore) -> None:
    probe_store(store, RETRIES)
    assert list(store.list("")) == []


def test_an_object_is_created_once_and_read_in_ranges(store: MeteredStore) -> None:
    create_object(store, "t/1/seg-1.data", [b"0123456789", b"abc"], RETRIES)
    with pytest.raises(ObjectExists):
        create_object(store, "t/1/seg-1.data", [b"other"], RETRIES)
    assert store.read("t/1/seg-1.data", 0, 100) == b"0123456789abc"
    assert store.read("t/1/seg-1.data", 9, 2) == b"9a"
    assert store.read("t/1/seg-1.data", 12, 50) == b"c"
    assert store.read("t/1/seg-1.data", 13, 5) == b""
    assert store.info("t/1/seg-1.data").size == 13
    assert abs(store.info("t/1/seg-1.data").modified_ms - time.time() * 1000) < 60_000


def test_a_missing_object_is_a_file_that_is_not_found(store: MeteredStore) -> None:
    for request in (lambda: store.read("no", 0, 5), lambda: store.info("no")):
        with pytest.raises(FileNotFoundError):
            request()
    store.delete("no")


def test_a_listing_is_by_prefix_and_in_order(store: MeteredStore) -> None:
    keys = ["a/10/x", "a/2/y", "a/2/z", "b"]
    for key in reversed(keys):
        create_object(store, key, [key.encode()], RETRIES)
    assert [info.key for info in store.list("")] == keys
    assert [(info.key, info.size) for info in store.list("a/2/")] == [("a/2/y", 5), ("a/2/z", 5)]
    assert [info.key for info in store.list("a/1")] == ["a/10/x"]
    assert [info.key for info in store.list("a/", after="a/2/y")] == ["a/2/z"]
    store.delete("a/2/y")
    assert [info.key for info in store.list("a/2/")] == ["a/2/z"]


def test_of_many_writers_of_one_key_exactly_one_succeeds(store: MeteredStore) -> None:
    winners: list[int] = []

    def write(number: int) -> None:
        try:
            create_object(store, "contested", [b"%d" % number], RETRIES)
        except ObjectExists:
            return
        winners.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = winners
    assert store.read("contested", 0, 10) == b"%d" % winner


def test_a_large_object_is_read_through_the_cache(store: MeteredStore) -> None:
    data = bytes(range(256)) * (20 << 10)
    create_object(store, "large", [data], RETRIES)
    cache = BlockCache(store, 8 << 20)
    reads = store.totals.reads
    assert b"".join(cache.read("large", at, 100_000) for at in range(0, len(data), 100_000)) == data
    assert store.totals.reads - reads <= 6
    assert store.totals.bytes_read >= len(data)


def test_a_server_that_is_away_is_unavailable_and_comes_back(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    store = open_store(s3.url(f"bucket-{next(_buckets)}"), RealFs())
    create_object(store, "before", [b"1"], RETRIES)
    s3.stop()
    try:
        with pytest.raises(StoreUnavailable):
            store.create("during", [b"2"], "id")
        with pytest.raises(StoreUnavailable):
            store.read("before", 0, 1)
    finally:
        s3.start()
    create_object(store, "after", [b"3"], RETRIES)
    assert store.read("before", 0, 1) == b"1"


def test_a_bucket_that_does_not_exist_is_named(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://no-such-bucket?endpoint={s3.endpoint}&region=us-east-1", RealFs())
    with pytest.raises((StoreRefused, FileNotFoundError), match="no-such-bucket"):
        store.create("a", [b"1"], "id")
