from __future__ import annotations

import errno
import threading
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.harness.machine.faults import PowerCut, ProcessKilled
from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.fs import RealFs
from topicsd.segment.store import COPY_BYTES, LocalStore

KEY = "topics/0000000000000007-1/seg-0000000000000001.data"


def put(store: LocalStore, key: str, data: bytes) -> None:
    store.put(key, lambda offset, size: data[offset : offset + size], len(data))


def made() -> tuple[MemoryDisk, LocalStore]:
    disk = MemoryDisk(traced=True)
    return disk, LocalStore(disk, "/store", open_files_max=3)


def test_what_was_put_is_there_whatever_its_size() -> None:
    _, store = made()
    for size in (0, 1, COPY_BYTES, 2 * COPY_BYTES + 5):
        data = Random(size).randbytes(size)
        put(store, KEY, data)
        assert store.exists(KEY)
        assert store.size(KEY) == size
        assert store.read_range(KEY, 0, size + 10) == data
        assert store.read_range(KEY, 3, 4) == data[3:7]


def test_what_is_not_there_is_not_found() -> None:
    _, store = made()
    assert not store.exists(KEY)
    for call in (lambda: store.read_range(KEY, 0, 1), lambda: store.size(KEY), lambda: store.delete(KEY)):
        with pytest.raises(FileNotFoundError):
            call()
    put(store, KEY, b"x")
    store.read_range(KEY, 0, 1)
    store.delete(KEY)
    with pytest.raises(FileNotFoundError):
        store.read_range(KEY, 0, 1)


def test_the_keys_with_a_prefix_are_listed_in_order() -> None:
    disk, store = made()
    assert store.list("") == []
    keys = [
        f"topics/{topic}/seg-{seq}.{end}"
        for topic in ("a", "ab", "b")
        for seq in (1, 2)
        for end in ("idx", "data")
    ]
    for key in keys:
        put(store, key, b"x")
    disk.write_file("/store/topics/a/seg-3.data.tmp", b"half")
    assert store.list("") == sorted(keys)
    assert store.list("topics/a/") == sorted(key for key in keys if key.startswith("topics/a/"))
    assert store.list("topics/a") == sorted(key for key in keys if key.startswith("topics/a"))
    assert store.list("topics/b/seg-2") == ["topics/b/seg-2.data", "topics/b/seg-2.idx"]
    assert store.list("nothing/here") == []


def test_the_descriptors_that_are_kept_are_bounded_and_all_closed_in_the_end() -> None:
    disk, store = made()
    for number in range(10):
        put(store, f"a/{number}", bytes([number]))
        assert store.read_range(f"a/{number}", 0, 1) == bytes([number])
        assert len(disk.open_files) <= 3
    for number in range(10):
        assert store.read_range(f"a/{number}", 0, 1) == bytes([number])
    store.close()
    assert not disk.open_files


def test_a_file_that_was_put_again_is_read_anew() -> None:
    disk, store = made()
    put(store, KEY, b"old")
    assert store.read_range(KEY, 0, 9) == b"old"
    put(store, KEY, b"new")
    assert store.read_range(KEY, 0, 9) == b"new"
    disk.write_file(f"/store/{KEY}.other", b"moved")
    disk.rename(f"/store/{KEY}.other", f"/store/{KEY}")
    assert store.read_range(KEY, 0, 9) == b"new"
    store.forget(KEY)
    assert store.read_range(KEY, 0, 9) == b"moved"


def test_a_file_that_was_put_again_while_it_was_opened_is_not_kept_open() -> None:
    disk, store = made()
    put(store, KEY, b"old")
    plain = disk.open_read

    def open_read(path: str) -> int:
        fd = plain(path)
        disk.open_read = plain  # type: ignore[method-assign]
        put(store, KEY, b"new")
        return fd

    disk.open_read = open_read  # type: ignore[method-assign]
    assert store.read_range(KEY, 0, 9) == b"old"
    assert not disk.open_files
    assert store.read_range(KEY, 0, 9) == b"new"


def test_a_source_that_is_over_too_early_stores_nothing() -> None:
    disk, store = made()
    with pytest.raises(OSError, match="the source ends at 3 of 5"):
        store.put(KEY, lambda offset, size: b"abc"[offset:], 5)
    assert disk.all_files() == []


def test_a_full_disk_leaves_nothing_half() -> None:
    disk = MemoryDisk(space_bytes=3 * COPY_BYTES)
    store = LocalStore(disk, "/store")
    with pytest.raises(OSError, match="No space left"):
        put(store, KEY, bytes(4 * COPY_BYTES))
    assert disk.all_files() == []
    put(store, KEY, b"fits")


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_call_that_fails_leaves_the_old_or_the_new(code: int) -> None:
    nth = 1
    while True:
        disk, store = made()
        put(store, KEY, b"old")
        fault = disk.fail(nth=nth, error=code)
        with suppress(OSError):
            put(store, KEY, b"new!")
        disk.clear_faults()
        if not fault.fired:
            break
        store.forget(KEY)
        assert store.read_range(KEY, 0, 9) in (b"old", b"new!")
        put(store, KEY, b"newer")
        assert store.read_range(KEY, 0, 9) == b"newer"
        assert len(disk.all_files()) == 1
        store.close()
        assert not disk.open_files
        nth += 1
    assert nth > 5


def test_what_was_put_survives_a_power_cut_at_any_moment() -> None:
    calls = 0
    while True:
        disk, store = made()
        disk.cut_power_after(calls)
        done = 0
        with suppress(PowerCut):
            for number, data in enumerate((b"first", b"second", b"third"), 1):
                put(store, KEY, data)
                done = number
        for seed in range(8):
            survivor = LocalStore(disk.after_power_cut(Random(seed)), "/store")
            content = survivor.read_range(KEY, 0, 99) if survivor.exists(KEY) else b""
            assert content in (b"", b"first", b"second", b"third")[done : done + 2], (calls, seed)
            put(survivor, KEY, b"and on")
            assert survivor.read_range(KEY, 0, 99) == b"and on"
        if not disk.is_gone:
            break
        calls += 1
    assert calls > 15


def test_a_directory_that_a_killed_process_made_is_not_lost_with_what_is_put_there() -> None:
    calls = 0
    while True:
        disk, store = made()
        disk.kill_process_after(calls)
        with suppress(ProcessKilled):
            put(store, KEY, b"first")
        again = disk.after_process_kill()
        put(LocalStore(again, "/store"), KEY, b"second")
        for seed in range(8):
            survivor = LocalStore(again.after_power_cut(Random(seed)), "/store")
            assert survivor.read_range(KEY, 0, 99) == b"second"
        if not disk.is_gone:
            break
        calls += 1


@pytest.mark.slow
def test_threads_read_what_they_asked_for_while_files_come_and_go(tmp_path: Path) -> None:
    store = LocalStore(RealFs(), str(tmp_path), open_files_max=2)
    keys = [f"a/{number}" for number in range(6)]
    for number, key in enumerate(keys):
        put(store, key, bytes([number]) * 1000)
    wrong: list[str] = []

    def read(seed: int) -> None:
        rng = Random(seed)
        for _ in range(1500):
            number = rng.randrange(6)
            try:
                content = store.read_range(keys[number], 0, 1000)
            except FileNotFoundError:
                if number != 5:
                    wrong.append(f"{keys[number]} is gone")
                continue
            except OSError as error:
                wrong.append(str(error))
                continue
            if content != bytes([number]) * 1000:
                wrong.append(f"{keys[number]} reads {content[:3]!r}")

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        store.delete(keys[5])
        store.forget(keys[0])
        put(store, keys[5], bytes([5]) * 1000)
    for thread in threads:
        thread.join()
    store.close()
    assert wrong == []
