"""`topicsd store vacuum`: what a crash of an export left is deleted, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.e2e.test_doctor_cold import ColdDirectory
from tests.harness.output.command_run import CommandResult, run_here
from tests.harness.shard.data_dirs import flip
from topicsd.catalog.catalog import Extent, ExtentObject
from topicsd.catalog.sqlite_catalog import SqliteCatalog
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import read_layout
from topicsd.engine.bundle.bundle_format import Bundle, encode_bundle
from topicsd.engine.checkpoint.snapshot_files import read_snapshot, snapshot_numbers
from topicsd.engine.checkpoint.snapshot_format import SnapshotTopic
from topicsd.segment.referred_stems import BackupReferences, encode_references
from topicsd.store.file_objects import FileObjects

HOUR = 3_600_000
SOLE = "--sole-directory"


class LeftStore(ColdDirectory):
    """A store with exported segments that are a week old, and a hook for what crashes leave."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        snapshots = [
            read_snapshot(self.shard.fs, self.shard.paths, number)
            for number in snapshot_numbers(self.shard.fs, self.shard.paths)
        ]
        self.until_ms = snapshots[0].head.created_ms
        (self.topic,) = [topic for topic in snapshots[0].topics if topic.name == "orders"]
        self.folder = next(self.cold.glob("segments/*"))
        self.named = sorted(self.cold.rglob("*.*"))
        assert len(self.named) == 3 * 3
        for file in self.named:
            self.age(file, hours=7 * 24)

    def age(self, file: Path, hours: float) -> Path:
        """Make a file older than the newest snapshot."""
        seconds = (self.until_ms - hours * HOUR) / 1000
        os.utime(file, (seconds, seconds))
        return file

    def leave(self, name: str, hours: float, folder: Path | None = None) -> Path:
        folder = folder or self.folder
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / name
        file.write_bytes(b"left")
        return self.age(file, hours)

    def leave_segment(self, hours: float, number: int = 1) -> list[Path]:
        stem = f"1-seg-{number:016d}-00c0ffee"
        return [self.leave(f"{stem}{suffix}", hours) for suffix in (".data", ".idx", ".tags")]

    def vacuum(self, *more: object) -> CommandResult:
        return run_here("store", "vacuum", self.data, *more)

    def report(self, *more: object) -> Any:
        ran = self.vacuum("--json", *more)
        assert (ran.err, ran.code) == ("", 0)
        return ran.json


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LeftStore:
    monkeypatch.delenv("TOPICS_CATALOG_URL", raising=False)
    return LeftStore(tmp_path)


def keys(report: Any, kind: str) -> list[str]:
    return sorted(one["key"] for one in report[kind])


def test_what_nothing_names_is_deleted_only_with_apply(left: LeftStore) -> None:
    old, young = left.leave_segment(24.1), left.leave_segment(23.9, number=2)
    shown = left.report()
    assert keys(shown, "orphans") == sorted(file.relative_to(left.cold).as_posix() for file in old)
    assert (shown["named"], shown["young"], shown["unknown"], shown["is_deleted"]) == (9, 3, 0, False)
    assert all(file.exists() for file in old)
    assert "3 objects, 12 B can be deleted with --apply" in left.vacuum().out
    assert "deleted 3 objects" in left.vacuum("--apply", SOLE).out
    assert not any(file.exists() for file in old)
    assert all(file.exists() for file in (*left.named, *young))
    assert "nothing to delete" in left.vacuum().out
    assert run_here("verify", left.data).code == 0


def test_what_a_backup_refers_to_is_kept(left: LeftStore) -> None:
    referred, other = left.leave_segment(100), left.leave_segment(100, number=2)
    stem = referred[0].relative_to(left.cold).as_posix().removesuffix(".data")
    store = FileObjects(RealFs(), str(left.cold))
    references = BackupReferences("id", "file:///backups", [stem])
    store.create(references.key, [encode_references(references)], "")
    report = left.report("--apply", SOLE)
    assert keys(report, "orphans") == sorted(file.relative_to(left.cold).as_posix() for file in other)
    assert all(file.exists() for file in referred)
    store.delete(references.key)
    left.report("--apply", SOLE)
    assert not any(file.exists() for file in referred)


def test_without_a_catalog_the_caller_says_that_no_other_directory_uses_the_store(left: LeftStore) -> None:
    (file, *_) = left.leave_segment(100)
    ran = left.vacuum("--apply")
    assert ran.code == 2
    assert "--sole-directory" in ran.err
    assert file.exists()


def test_objects_of_unknown_topics_are_kept_unless_no_other_directory_uses_the_store(left: LeftStore) -> None:
    other = left.leave("1-seg-0000000000000001-00c0ffee.data", 1000, left.cold / "segments" / f"{7:016x}-9")
    foreign = left.leave("notes.txt", 1000, left.cold / "segments")
    report = left.report()
    assert (report["orphans"], report["unknown"]) == ([], 2)
    report = left.report("--apply", SOLE)
    assert (keys(report, "orphans"), report["unknown"]) == ([other.relative_to(left.cold).as_posix()], 1)
    assert (other.exists(), foreign.exists()) == (False, True)


def test_objects_of_a_topic_that_the_catalog_has_are_kept(left: LeftStore) -> None:
    other = left.leave("1-seg-0000000000000001-00c0ffee.data", 1000, left.cold / "segments" / f"{7:016x}-9")
    catalog = SqliteCatalog(str(left.cold / "catalog.sqlite"))
    catalog.create("theirs", 7, 9, "another-node", 1000)
    catalog.close()
    report = left.report("--apply", SOLE)
    assert (keys(report, "orphans"), report["unknown"]) == ([], 0)
    assert other.exists()


def test_temporary_files_and_probes_are_deleted_by_their_age(left: LeftStore) -> None:
    folders = (left.folder, left.cold / "segments" / f"{7:016x}-9", left.cold / "probe" / "1234")
    old = [left.leave("seg.data.1a2b3c4d.tmp", 25, folder) for folder in folders]
    old.append(left.leave("object", 25, left.cold / "probe" / "5678"))
    seconds_ago = left.leave("seg.idx.1a2b3c4d.tmp", 25)
    os.utime(seconds_ago)
    report = left.report("--apply", SOLE)
    assert keys(report, "temporary") == sorted(file.relative_to(left.cold).as_posix() for file in old)
    assert [file.exists() for file in (*old, seconds_ago)] == [False] * 4 + [True]


def test_objects_that_are_still_to_be_deleted_are_the_servers(left: LeftStore) -> None:
    shard = left.started()
    shard.delete("orders", before_seq=12)
    for _ in range(3):
        shard.append("orders", 1)
        shard.checkpoint()
    assert len(shard.shard.state.objects_to_delete) == 1
    shard.shard.close(checkpoint=False)
    report = left.report("--apply", SOLE)
    assert (report["orphans"], report["named"]) == ([], 9)


@pytest.mark.parametrize("harm", ["damaged", "missing"])
def test_a_shard_without_its_snapshots_ends_it(left: LeftStore, harm: str) -> None:
    (file, *_) = left.leave_segment(100)
    newest, older = reversed(left.snapshots())
    if harm == "damaged":
        flip(newest, 60)
    else:
        newest.unlink()
        older.unlink()
    ran = left.vacuum("--apply", SOLE)
    assert (ran.code, file.exists()) == (1, True)
    assert "topicsd doctor" in ran.err


def test_a_change_of_the_number_of_shards_ends_it(left: LeftStore) -> None:
    (file, *_) = left.leave_segment(100)
    (left.data / "shards" / "01").mkdir()
    ran = left.vacuum("--apply", SOLE)
    assert (ran.code, file.exists()) == (2, True)
    assert "number of shards" in ran.err


def row(left: LeftStore, catalog: SqliteCatalog, topic: SnapshotTopic, node: str, named: Path) -> None:
    created = catalog.create(topic.name, topic.topic_id, topic.epoch, node, 1000)
    key = named.relative_to(left.cold).as_posix()
    extent = Extent(1, 10, (ExtentObject(key, 4, ""),), 1, 2, 1)
    catalog.publish_extents(topic.name, created.ownership, [extent], [])
    catalog.close()


def test_what_the_catalog_names_is_kept(left: LeftStore) -> None:
    layout = read_layout(RealFs(), str(left.data))
    assert layout is not None
    published, orphans = left.leave_segment(100), left.leave_segment(100, number=2)
    catalog = SqliteCatalog(str(left.cold / "catalog.sqlite"))
    row(left, catalog, left.topic, layout.instance, published[0])
    report = left.report("--apply")
    assert keys(report, "orphans") == sorted(file.relative_to(left.cold).as_posix() for file in orphans)
    assert all(file.exists() for file in (*published, *left.named))
    assert not any(file.exists() for file in orphans)


def test_what_a_state_object_of_the_catalog_names_is_kept(left: LeftStore) -> None:
    layout = read_layout(RealFs(), str(left.data))
    assert layout is not None
    in_state, orphans = left.leave_segment(100), left.leave_segment(100, number=2)
    stem = in_state[0].relative_to(left.cold).as_posix().removesuffix(".data")
    entries = [
        msgspec.structs.replace(entry, object_stem=stem, dead_count=0)
        for entry in left.topic.segments[:1]
        if entry.is_sealed
    ]
    topic = msgspec.structs.replace(left.topic, segments=entries, ceiling=left.topic.head)
    state = left.leave("1-state-0000000000000010-00c0ffee.state", 100)
    state.write_bytes(encode_bundle(Bundle(topic, [], [])))
    left.age(state, 100)
    catalog = SqliteCatalog(str(left.cold / "catalog.sqlite"))
    row(left, catalog, left.topic, layout.instance, state)
    report = left.report("--apply")
    assert keys(report, "orphans") == sorted(file.relative_to(left.cold).as_posix() for file in orphans)
    assert all(file.exists() for file in (*in_state, state))


def row_after_a_seal(left: LeftStore, state: Path, owner_epoch: int) -> None:
    """Make the row of a topic that was sealed and adopted, with a state of this owner epoch."""
    layout = read_layout(RealFs(), str(left.data))
    assert layout is not None
    topic = msgspec.structs.replace(left.topic, segments=[], ceiling=left.topic.head)
    state.write_bytes(encode_bundle(Bundle(topic, [], [])))
    left.age(state, 100)
    catalog = SqliteCatalog(str(left.cold / "catalog.sqlite"))
    created = catalog.create(left.topic.name, left.topic.topic_id, left.topic.epoch, layout.instance, 10)
    key = state.relative_to(left.cold).as_posix()
    extent = Extent(1, 10, (ExtentObject(key, 4, ""),), 1, 2, owner_epoch)
    catalog.publish_extents(left.topic.name, created.ownership, [extent], [])
    sealed_key = key.replace(f"{owner_epoch}-state", "1-state").replace("00c0ffee", "5ea1ed00")
    catalog.seal(left.topic.name, created.ownership, 10, sealed_key)
    catalog.adopt(left.topic.name, layout.instance, left.topic.epoch, 1)
    catalog.close()


def test_the_state_of_a_seal_is_not_needed_after_a_newer_one(left: LeftStore) -> None:
    orphans = left.leave_segment(100)
    state = left.leave("2-state-0000000000000010-00c0ffee.state", 100)
    row_after_a_seal(left, state, 2)
    # The next owner has deleted it; the row still has its key.
    assert keys(left.report("--apply"), "orphans") == sorted(
        file.relative_to(left.cold).as_posix() for file in orphans
    )
    sealed = left.leave("1-state-0000000000000010-5ea1ed00.state", 100)
    assert keys(left.report("--apply"), "orphans") == [sealed.relative_to(left.cold).as_posix()]
    assert state.exists()


def test_a_state_that_is_missing_ends_it(left: LeftStore) -> None:
    (file, *_) = left.leave_segment(100)
    state = left.leave("1-state-0000000000000010-00c0ffee.state", 100)
    row_after_a_seal(left, state, 1)
    ran = left.vacuum("--apply")
    assert (ran.code, file.exists()) == (1, True)
    assert "missing, and the catalog named it; run the command again" in ran.err


@pytest.mark.parametrize("has_row", [True, False])
def test_topics_of_other_nodes_are_kept(left: LeftStore, has_row: bool, tmp_path: Path) -> None:
    files = left.leave_segment(100)
    catalog = SqliteCatalog(str(tmp_path / "catalog.sqlite"))
    if has_row:
        row(left, catalog, left.topic, "another", files[0])
    catalog.close()
    report = left.report("--apply", SOLE, "--catalog-url", f"sqlite://{tmp_path}/catalog.sqlite")
    assert (report["orphans"], report["elsewhere"]) == ([], 3)
    assert all(file.exists() for file in files)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--grace-hours", 0), "--grace-hours: must be at least 1, got 0"),
        (("--shard", 0), "--shard: must not be given: all shards use one store"),
        (("--catalog-url", "etcd://user:hush@host"), "--catalog-url: must not contain credentials"),
        (("--store-url", "file:///elsewhere"), "which the manifest names"),
    ],
)
def test_bad_arguments_are_refused(left: LeftStore, arguments: tuple[object, ...], sentence: str) -> None:
    ran = left.vacuum(*arguments)
    assert ran.code == 2
    assert sentence in ran.err
    assert "hush" not in ran.err
