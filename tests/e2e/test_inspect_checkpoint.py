"""`topicsd inspect --checkpoint` on directories with good and damaged snapshots."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.harness.output.command_run import fingerprint, run_here
from tests.harness.shard.data_dirs import flip
from tests.harness.shard.shard_driver import INSTANCE
from tests.unit.checkpoint.sample import ORDERS, bytes_of, head_of, sample
from topicsd.disk.fs import RealFs
from topicsd.disk.layout import ShardPaths, create_data_dir, shard_paths
from topicsd.engine.checkpoint.manifest import manifest_head, manifest_parts, topic_line, write_manifest
from topicsd.engine.checkpoint.reader_lock import ReaderLock
from topicsd.engine.checkpoint.trash import move_to_trash

FS = RealFs()


def put_snapshot(paths: ShardPaths, number: int, **changed: Any) -> None:
    snapshot = sample(number)
    head = msgspec.structs.replace(snapshot.head, instance=INSTANCE, **changed)
    Path(paths.snapshot(number)).write_bytes(bytes_of(snapshot._replace(head=head)))


def data_dir(path: Path, *numbers: int) -> ShardPaths:
    create_data_dir(FS, str(path), 1, INSTANCE)
    paths = shard_paths(str(path), 0)
    for number in numbers:
        put_snapshot(paths, number)
    if numbers:
        lines = [topic_line(topic, topic.head) for topic in sample().topics]
        write_manifest(FS, paths, manifest_parts(manifest_head(head_of(max(numbers)), "file:///cold"), lines))
    return paths


def checked(path: Path, *more: object, code: int = 0) -> str:
    """Return the output of the command; check that it changes nothing."""
    before = fingerprint(path)
    ran = run_here("inspect", path, "--checkpoint", *more)
    assert (ran.code, ran.err) == (code, "")
    assert fingerprint(path) == before
    return ran.out


def only_shard(path: Path, code: int = 0) -> Any:
    (shard,) = msgspec.json.decode(checked(path, "--json", code=code))["shards"]
    return shard


def test_snapshots_are_listed_with_their_contents(tmp_path: Path) -> None:
    data_dir(tmp_path, 6, 7)
    output = checked(tmp_path)
    assert "uses snapshot 7 and reads the log from ordinal 10190, at offset 4096 of" in output
    assert "snapshot.00000006.bin" in output
    assert "orders/ä" in output
    assert "object store file:///cold" in output
    assert "WRONG" not in output
    shard = only_shard(tmp_path)
    newest = shard["snapshots"][0]
    assert (newest["topic_count"], newest["segment_count"], newest["idempotency_keys"]) == (2, 2, 2)
    assert shard["used"] == shard["published"]["number"] == 7


def test_a_topic_is_shown_with_its_segments(tmp_path: Path) -> None:
    data_dir(tmp_path, 7)
    output = checked(tmp_path, "--topic", "orders/ä")
    for text in ("seg-0000000000000001-2", "sealed", "cold", "10021-10027", "active", "seqs 10001 to 10020"):
        assert text in output
    answer = msgspec.json.decode(checked(tmp_path, "--topic", "orders/ä", "--json"))
    assert answer["snapshot"] == 7
    assert answer["topic"]["config"]["durability"] == "fsync"
    assert answer["topic"]["segments"][0]["live_count"] == ORDERS.segments[0].live_count
    assert answer["topic"]["sections"] == {"queue": {"bytes": len(ORDERS.sections["queue"])}}


def test_a_damaged_snapshot_is_reported_and_the_one_before_it_is_used(tmp_path: Path) -> None:
    paths = data_dir(tmp_path, 6, 7)
    flip(paths.snapshot(7), 60)
    output = checked(tmp_path, code=1)
    assert "WRONG" in output
    assert "NOT USED" in output
    assert "uses snapshot 6" in output
    shard = only_shard(tmp_path, code=1)
    assert [bool(one["damage"]) for one in shard["snapshots"]] == [True, False]
    assert "checksum" in shard["problems"][0]
    assert "WRONG" in checked(tmp_path, "--topic", "empty", code=1)


def test_a_snapshot_of_another_directory_is_reported(tmp_path: Path) -> None:
    paths = data_dir(tmp_path, 6)
    put_snapshot(paths, 7, shard=3)
    assert "shard 03" in only_shard(tmp_path, code=1)["problems"][0]


def test_a_snapshot_of_a_newer_program_stops_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = data_dir(tmp_path, 6)
    monkeypatch.setattr("topicsd.engine.checkpoint.snapshot_format.VERSION", 2)
    put_snapshot(paths, 7)
    monkeypatch.undo()
    shard = only_shard(tmp_path, code=1)
    assert shard["used"] is None
    assert "version 2" in shard["problems"][0]
    assert "finds no usable snapshot" in checked(tmp_path, code=1)


def test_a_damaged_manifest_is_reported(tmp_path: Path) -> None:
    paths = data_dir(tmp_path, 7)
    flip(paths.manifest, 60)
    assert "Outside readers cannot read this shard" in only_shard(tmp_path, code=1)["problems"][0]


def test_trash_and_readers_are_reported(tmp_path: Path) -> None:
    paths = data_dir(tmp_path, 7)
    dropped = os.path.join(paths.wal, "wal-0000000000000001.log")
    Path(dropped).write_bytes(b"x" * 2048)
    move_to_trash(FS, paths, [dropped], 1000)
    Path(paths.readers, "dead-1").touch()
    with ReaderLock(paths.readers, "spark"):
        output = checked(tmp_path)
        assert f"process {os.getpid()} holds the files in trash/" in output
        assert "1 file, 2 KiB" in output
        assert "dead-1: stale" in output


@pytest.mark.parametrize("has_directories", [True, False])
def test_a_shard_without_a_checkpoint_is_reported(tmp_path: Path, has_directories: bool) -> None:
    paths = data_dir(tmp_path)
    if not has_directories:
        # As written by a program without checkpoints.
        for directory in (paths.readers, paths.meta, paths.trash, paths.topics):
            os.rmdir(directory)
    assert "there is no checkpoint yet" in checked(tmp_path)
    assert only_shard(tmp_path)["snapshots"] == []
    ran = run_here("inspect", tmp_path, "--checkpoint", "--topic", "orders")
    assert (ran.code, ran.out) == (2, "")
    assert "no snapshot in" in ran.err


def test_frames_and_checkpoint_cannot_be_combined(tmp_path: Path) -> None:
    data_dir(tmp_path)
    ran = run_here("inspect", tmp_path, "--checkpoint", "--frames")
    assert ran.code == 2
    assert "not allowed with" in ran.err
