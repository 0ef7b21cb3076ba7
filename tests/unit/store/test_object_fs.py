from __future__ import annotations

import errno

import pytest

from shared.runtime.retries import Retries
from tests.harness.machine.fake_store import FakeStore
from topicsd.disk.atomic_replace import exists, read_all
from topicsd.disk.layout import names_in
from topicsd.store.create_object import create_object
from topicsd.store.object_fs import ObjectFile, ObjectFs, ObjectPart
from topicsd.store.object_store import StoreRefused, StoreUnavailable
from topicsd.store.repeated_reads import RepeatedReads

PATH = "s3://bucket/backups/1/shards/00/wal/wal-1.log"


def retries(seconds: float = 30.0) -> Retries:
    return Retries(lambda: 0.0, lambda _: None, seconds)


def file_system(files: dict[str, ObjectFile], **objects: bytes) -> ObjectFs:
    store = FakeStore()
    for key, data in objects.items():
        create_object(store, key, [data], retries())
    return ObjectFs(store.read, files)


def test_every_range_of_a_file_has_the_bytes_of_its_parts_and_then_zeros() -> None:
    parts = (ObjectPart("a", 2, 3), ObjectPart("b", 0, 4), ObjectPart("c", 1, 1))
    fs = file_system({PATH: ObjectFile(12, parts)}, a=b"0123456", b=b"abcd", c=b"xyz")
    content = b"234abcdy" + bytes(4)
    fd = fs.open_read(PATH)
    for offset in range(15):
        for size in range(15):
            assert fs.pread(fd, size, offset) == content[offset : offset + size]
    assert fs.fstat(fd).size == fs.stat(PATH).size == 12
    fs.close(fd)
    assert read_all(fs, PATH, 100) == content


def test_directories_follow_from_the_files() -> None:
    other = PATH.replace("00/wal/wal-1.log", "01/meta/MANIFEST.json")
    fs = file_system({PATH: ObjectFile(0, ()), other: ObjectFile(0, ())})
    assert fs.list_dir("s3://bucket/backups/1/shards") == ["00", "01"]
    assert names_in(fs, "s3://bucket/backups/1/shards/00/trash") == []
    assert exists(fs, "s3://bucket/backups/1/shards/01/meta")
    assert not exists(fs, "s3://bucket/backups/1/shards/02")
    assert fs.some_of([PATH, "other"]) == {PATH: ObjectFile(0, ())}
    with pytest.raises(FileNotFoundError):
        fs.open_read(f"{PATH}2")


def test_a_missing_object_is_no_missing_file() -> None:
    fs = file_system({PATH: ObjectFile(6, (ObjectPart("a", 0, 3), ObjectPart("b", 0, 3)))}, a=b"0123", b=b"0")
    fd = fs.open_read(PATH)
    assert fs.pread(fd, 3, 0) == b"012"
    with pytest.raises(StoreRefused) as short:
        fs.pread(fd, 6, 0)
    assert short.value.errno == errno.EIO
    missing = file_system({PATH: ObjectFile(3, (ObjectPart("a", 0, 3),))})
    with pytest.raises(StoreRefused, match="the object a is missing"):
        missing.pread(missing.open_read(PATH), 3, 0)


def test_nothing_can_be_changed() -> None:
    fs = file_system({PATH: ObjectFile(0, ())})
    with pytest.raises(AssertionError, match="tried to change the disk"):
        fs.unlink(PATH)


def test_reads_are_repeated_while_the_store_does_not_answer() -> None:
    store = FakeStore()
    create_object(store, "a", [b"data"], retries())
    patient = RepeatedReads(store, retries)
    store.faults = ["lost request", "lost answer"]
    assert patient.read("a", 1, 2) == b"at"
    store.faults = ["lost request"]
    assert patient.info("a").size == 4
    store.faults = ["lost request"]
    assert [info.key for info in patient.list("")] == ["a"]
    with pytest.raises(FileNotFoundError):
        patient.read("b", 0, 1)


def test_reads_fail_after_the_time_of_the_retries() -> None:
    store = FakeStore()
    create_object(store, "a", [b"data"], retries())
    store.faults = ["lost request"]
    with pytest.raises(StoreUnavailable):
        RepeatedReads(store, lambda: retries(0.0)).read("a", 0, 1)
