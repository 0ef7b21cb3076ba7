from __future__ import annotations

from contextlib import suppress
from random import Random

import msgspec
import pytest
import xxhash

from tests.harness.machine.faults import PowerCut
from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.atomic_replace import exists
from topicsd.disk.layout import (
    Layout,
    LayoutError,
    create_data_dir,
    is_leftover_name,
    make_segment_dirs,
    parse_segment_name,
    parse_snapshot_name,
    parse_topic_dir_name,
    parse_wal_name,
    read_layout,
    restore_empty_dirs,
    segment_stem,
    shard_paths,
    snapshot_name,
    topic_dir_name,
    wal_name,
)

INSTANCE = bytes(range(16))
LAYOUT = "/data/LAYOUT.json"


def made(shards: int = 2) -> MemoryDisk:
    disk = MemoryDisk(traced=True)
    create_data_dir(disk, "/data", shards, INSTANCE)
    return disk


def sealed(**fields: object) -> bytes:
    """A layout with a right checksum, whatever it says."""
    fields["checksum"] = ""
    fields["checksum"] = xxhash.xxh3_64_hexdigest(msgspec.json.encode(fields))
    return msgspec.json.encode(fields)


@pytest.mark.parametrize("ordinal", [1, 1024, 9_999_999_999_999_999])
def test_a_name_of_a_wal_file_that_is_made_is_parsed_back(ordinal: int) -> None:
    assert parse_wal_name(wal_name(ordinal)) == ordinal


@pytest.mark.parametrize(
    "name",
    [
        "CURRENT",
        "wal-1.log",
        "wal-0000000000000001.log.tmp",
        "wal-0000000000000001.log\n",
        "wal-00000000000000001.log",
        "wal-000000000000000x.log",
        "wal-" + "\u0661" * 16 + ".log",
        "WAL-0000000000000001.log",
        "spare-1.log",
        "",
    ],
)
def test_another_name_is_no_wal_file(name: str) -> None:
    assert parse_wal_name(name) is None


@pytest.mark.parametrize(
    "name", ["spare-1.log", "spare-12345.log", "CURRENT.tmp", "wal-0000000000000001.log.tmp"]
)
def test_what_was_being_made_is_a_leftover(name: str) -> None:
    assert is_leftover_name(name)


@pytest.mark.parametrize("name", ["CURRENT", wal_name(1), "spare-.log", "spare-1.logs", "notes.txt"])
def test_what_is_or_may_be_of_use_is_no_leftover(name: str) -> None:
    assert not is_leftover_name(name)


def test_every_path_of_a_shard_is_under_its_directory() -> None:
    paths = shard_paths("/data", 7)
    assert paths.root == "/data/shards/07"
    assert paths.lock == "/data/shards/07/LOCK"
    assert paths.wal_file(1024) == "/data/shards/07/wal/wal-0000000000001024.log"
    assert paths.current == "/data/shards/07/wal/CURRENT"
    assert is_leftover_name(paths.spare_file(3).rpartition("/")[2])
    assert paths.quarantine_file("x") == "/data/shards/07/quarantine/x"
    assert shard_paths("/data", 123).root == "/data/shards/123"
    assert paths.topic_dir(0xAB, 1024) == "/data/shards/07/topics/00000000000000ab-1024"
    assert paths.snapshot(7) == "/data/shards/07/meta/snapshot.00000007.bin"
    assert paths.manifest == "/data/shards/07/meta/MANIFEST.json"
    assert (paths.readers, paths.trash) == ("/data/shards/07/meta/readers", "/data/shards/07/trash")


@pytest.mark.parametrize(("topic_id", "epoch"), [(0, 1), (7, 1024), ((1 << 64) - 1, 10**15)])
def test_a_name_of_a_topic_directory_that_is_made_is_parsed_back(topic_id: int, epoch: int) -> None:
    assert parse_topic_dir_name(topic_dir_name(topic_id, epoch)) == (topic_id, epoch)


@pytest.mark.parametrize("generation", [0, 1, 2, 10, 123])
@pytest.mark.parametrize("suffix", [".data", ".idx", ".tags", ".del"])
def test_a_name_of_a_segment_file_that_is_made_is_parsed_back(generation: int, suffix: str) -> None:
    name = segment_stem(10001, generation) + suffix
    assert parse_segment_name(name) == (10001, generation, suffix)


def test_a_name_of_a_snapshot_that_is_made_is_parsed_back() -> None:
    assert parse_snapshot_name(snapshot_name(7)) == 7


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0123456789abcdef-0",
        "0123456789ABCDEF-1",
        "0123456789abcdef-01",
        "0123456789abcdef-1.deleted",
        "0123456789abcdef",
        "seg-0000000000000001",
        "seg-0000000000000001-0.data",
        "seg-0000000000000001-01.data",
        "seg-0000000000000001.data.tmp",
        "seg-1.data",
        "seg-0000000000000001.log",
        "snapshot.7.bin",
        "snapshot.00000007.bin.tmp",
        "snapshot.00000007.bin\n",
    ],
)
def test_another_name_is_none_of_them(name: str) -> None:
    assert parse_topic_dir_name(name) is None
    assert parse_segment_name(name) is None
    assert parse_snapshot_name(name) is None


def test_a_shard_of_an_earlier_version_gets_the_directories_that_it_lacks() -> None:
    disk = MemoryDisk()
    paths = shard_paths("/data", 0)
    disk.make_dirs(paths.wal)
    disk.make_dirs(paths.topics)
    make_segment_dirs(disk, paths)
    make_segment_dirs(disk, paths)
    assert disk.list_dir(paths.root) == ["meta", "topics", "trash", "wal"]
    survivor = disk.after_power_cut(Random(0))
    assert survivor.list_dir(paths.readers) == []


def test_a_new_data_directory_is_read_back_as_it_was_made() -> None:
    disk = MemoryDisk()
    layout = create_data_dir(disk, "/deep/in/a/tree/data", 3, INSTANCE)
    assert read_layout(disk, "/deep/in/a/tree/data") == layout
    assert (layout.format, layout.shards, layout.instance_bytes) == (1, 3, INSTANCE)
    for shard in range(3):
        paths = shard_paths("/deep/in/a/tree/data", shard)
        assert disk.list_dir(paths.root) == ["meta", "quarantine", "topics", "trash", "wal"]
        assert disk.list_dir(paths.meta) == ["readers"]


def test_a_directory_without_a_layout_has_none() -> None:
    disk = MemoryDisk()
    assert read_layout(disk, "/data") is None
    disk.make_dirs("/data/shards")
    assert read_layout(disk, "/data") is None
    disk.write_file("/file", b"")
    assert read_layout(disk, "/file") is None


def test_the_layout_is_written_when_all_directories_are_on_the_disk() -> None:
    disk = made()
    assert disk.trace is not None
    calls = [f"{name} {arguments}" for name, arguments in disk.trace]
    written = next(at for at, call in enumerate(calls) if call.startswith("pwrite"))
    synced = {call.split()[1] for call in calls[:written] if call.startswith("sync_dir")}
    shards = {f"/data/shards/0{shard}{below}" for shard in (0, 1) for below in ("", "/meta")}
    assert synced == {"/", "/data", "/data/shards"} | shards


def test_a_crash_while_it_is_made_leaves_a_directory_that_can_be_made_again() -> None:
    calls = made().calls
    for cut_after in range(calls + 1):
        for seed in range(5):
            disk = MemoryDisk()
            disk.cut_power_after(cut_after)
            with suppress(PowerCut):
                create_data_dir(disk, "/data", 2, INSTANCE)
            survivor = disk.after_power_cut(Random(seed))
            layout = read_layout(survivor, "/data")
            if layout is None:
                assert cut_after < calls
                layout = create_data_dir(survivor, "/data", 2, INSTANCE)
            assert read_layout(survivor, "/data") == layout


def test_one_changed_byte_never_gives_another_layout() -> None:
    right = read_layout(made(), "/data")
    for offset in range(len(made().read_file(LAYOUT))):
        disk = made()
        disk.flip(LAYOUT, offset, 0x01)
        with suppress(LayoutError):
            # Read at all, it was a blank.
            assert read_layout(disk, "/data") == right, f"after a change at {offset}"


@pytest.mark.parametrize("kept", [0, 1, 20, 60])
def test_a_layout_that_was_cut_short_is_refused(kept: int) -> None:
    disk = made()
    disk.write_file(LAYOUT, disk.read_file(LAYOUT)[:kept])
    with pytest.raises(LayoutError, match=r"^/data/LAYOUT\.json: damaged: "):
        read_layout(disk, "/data")


@pytest.mark.parametrize(
    "text",
    [
        b"null",
        b"[]",
        b"{}",
        b'{"format":1}',
        b'{"format":"1","shards":2,"instance":"00","checksum":""}',
        b"\xff\xfe",
        b" " * 5000,
        b'{"format":1,"shards":2,"instance":"00","checksum":"0000000000000000"}',
    ],
)
def test_a_text_that_is_no_layout_is_refused_with_its_path(text: bytes) -> None:
    disk = made()
    disk.write_file(LAYOUT, text)
    with pytest.raises(LayoutError, match=r"^/data/LAYOUT\.json: damaged: "):
        read_layout(disk, "/data")


def test_another_format_is_refused_and_named() -> None:
    disk = made()
    disk.write_file(LAYOUT, sealed(format=2, shards=2, instance=INSTANCE.hex()))
    with pytest.raises(LayoutError, match="unknown format 2; this program reads format 1"):
        read_layout(disk, "/data")


def test_a_person_may_lay_the_file_out_anew() -> None:
    disk = made()
    layout = read_layout(disk, "/data")
    assert isinstance(layout, Layout)
    disk.write_file(LAYOUT, msgspec.json.encode(layout))
    assert read_layout(disk, "/data") == layout


def test_a_log_that_is_missing_was_lost() -> None:
    disk = made()
    disk.rename("/data/shards/01/wal", "/elsewhere")
    with pytest.raises(LayoutError, match=r"/data/shards/01/wal: missing, but LAYOUT\.json names 2 shards"):
        read_layout(disk, "/data")


@pytest.mark.parametrize("lost", ["quarantine", "topics", "meta/readers", "trash"])
def test_a_directory_that_optional_dirs_is_made_again(lost: str) -> None:
    disk = made()
    before = set(disk.all_files()), disk.list_dir("/data/shards/01")
    disk.remove_dir(f"/data/shards/01/{lost}")
    layout = read_layout(disk, "/data")
    assert layout is not None
    assert restore_empty_dirs(disk, "/data", layout) == [f"/data/shards/01/{lost}"]
    assert (set(disk.all_files()), disk.list_dir("/data/shards/01")) == before
    assert restore_empty_dirs(disk, "/data", layout) == []


def test_a_shard_that_was_never_written_may_lack_all_directories() -> None:
    disk = made()
    paths = shard_paths("/data", 1)
    for path in reversed(paths.optional_dirs):
        disk.remove_dir(path)
    layout = read_layout(disk, "/data")
    assert layout is not None
    assert restore_empty_dirs(disk, "/data", layout) == list(paths.optional_dirs)
    for seed in range(10):
        survivor = disk.after_power_cut(Random(seed))
        assert all(exists(survivor, path) for path in paths.optional_dirs)


def test_a_whole_shard_that_is_missing_was_lost() -> None:
    disk = made()
    disk.rename("/data/shards/00", "/elsewhere")
    with pytest.raises(LayoutError, match="/data/shards/00: missing"):
        read_layout(disk, "/data")


def test_a_log_without_a_layout_is_not_taken_for_a_new_directory() -> None:
    disk = made()
    disk.write_file(shard_paths("/data", 1).wal_file(1), b"a log")
    disk.unlink(LAYOUT)
    with pytest.raises(LayoutError, match=r"to rebuild it from the shards, run: topicsd doctor /data"):
        create_data_dir(disk, "/data", 2, INSTANCE)


def test_a_log_of_a_shard_beyond_the_new_number_is_not_overlooked() -> None:
    disk = made(shards=4)
    disk.write_file(shard_paths("/data", 3).wal_file(1), b"a log")
    disk.unlink(LAYOUT)
    with pytest.raises(LayoutError, match=r"/data/shards/03/wal holds a log"):
        create_data_dir(disk, "/data", 2, INSTANCE)
    assert read_layout(disk, "/data") is None


def test_a_foreign_directory_among_the_shards_is_ignored() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/data/shards/lost+found")
    disk.write_file("/data/shards/notes.txt", b"mine")
    assert create_data_dir(disk, "/data", 1, INSTANCE).shards == 1


def test_a_disk_that_fails_makes_no_layout() -> None:
    calls = made().calls
    for nth in range(1, calls + 1):
        disk = MemoryDisk()
        disk.fail(nth=nth)
        with pytest.raises(OSError, match="Input/output"):
            create_data_dir(disk, "/data", 2, INSTANCE)
        disk.clear_faults()
        if read_layout(disk, "/data") is None:
            create_data_dir(disk, "/data", 2, INSTANCE)
        assert read_layout(disk, "/data") is not None
