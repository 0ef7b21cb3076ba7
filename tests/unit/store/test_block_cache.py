"""Blocks of objects are kept within a bound, and read ahead for sequential readers."""

from __future__ import annotations

import random
import threading

import pytest

from tests.harness.machine.fake_store import FakeStore
from topicsd.store.block_cache import BLOCK_BYTES, READ_AHEAD_BYTES, BlockCache
from topicsd.store.object_store import StoreUnavailable

SIZE = 40 * BLOCK_BYTES + 1000
DATA = random.Random(5).randbytes(SIZE)


def store_with(*keys: str) -> FakeStore:
    store = FakeStore()
    for key in keys:
        store.create(key, [DATA], "id")
    store.requests.clear()
    return store


def test_any_range_is_that_of_the_object() -> None:
    store = store_with("a")
    cache = BlockCache(store, 8 * BLOCK_BYTES)
    chooser = random.Random(1)
    for _ in range(500):
        offset, size = chooser.randrange(SIZE + 10), chooser.choice((1, 100, BLOCK_BYTES, 3 * BLOCK_BYTES))
        assert cache.read("a", offset, size) == DATA[offset : offset + size]
        assert cache.size_bytes <= 8 * BLOCK_BYTES
    assert cache.hits
    assert cache.misses == len(store.requests)


def test_a_sequential_reader_needs_few_requests() -> None:
    store = store_with("a")
    cache = BlockCache(store, 2 * READ_AHEAD_BYTES)
    for offset in range(0, SIZE, 10_000):
        assert cache.read("a", offset, 10_000) == DATA[offset : offset + 10_000]
    # 1, 2, 4, 8, 16 blocks and the rest.
    assert len(store.requests) == 6


def test_a_random_reader_gets_the_blocks_that_it_needs() -> None:
    store = store_with("a")
    cache = BlockCache(store, 2 * READ_AHEAD_BYTES)
    for block in (9, 3, 30, 12):
        cache.read("a", block * BLOCK_BYTES + 5, 10)
    assert [request.split()[-1] for request in store.requests] == [str(BLOCK_BYTES)] * 4


def test_threads_that_need_one_block_share_one_request() -> None:
    store = store_with("a")
    gate = threading.Event()
    read = store.read

    def slow(key: str, offset: int, size: int) -> bytes:
        gate.wait(30)
        return read(key, offset, size)

    store.read = slow  # type: ignore[method-assign]
    cache = BlockCache(store, READ_AHEAD_BYTES)
    answers: list[bytes] = []
    threads = [threading.Thread(target=lambda: answers.append(cache.read("a", 7, 20))) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert answers == [DATA[7:27]] * 8
    assert len(store.requests) == 1


def test_a_failed_request_is_made_again_by_the_next_reader() -> None:
    store = store_with("a")
    store.faults = ["lost request"]
    cache = BlockCache(store, READ_AHEAD_BYTES)
    with pytest.raises(StoreUnavailable):
        cache.read("a", 0, 10)
    assert cache.read("a", 0, 10) == DATA[:10]


def test_a_deleted_object_is_forgotten() -> None:
    store = store_with("a", "b")
    cache = BlockCache(store, READ_AHEAD_BYTES)
    cache.read("a", 0, 10)
    cache.read("b", 0, 10)
    store.delete("a")
    cache.forget("a")
    assert cache.size_bytes == BLOCK_BYTES
    with pytest.raises(FileNotFoundError):
        cache.read("a", 0, 10)


def test_a_cache_without_room_still_reads() -> None:
    cache = BlockCache(store_with("a"), 0)
    assert cache.read("a", 5, 5) == DATA[5:10]
    assert cache.size_bytes == 0
