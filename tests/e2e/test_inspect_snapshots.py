"""`topicsd inspect` on directories with snapshots and segments predicts the result of a start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tests.e2e.test_doctor import damage, kept, segment, started, write
from tests.harness.output.command_run import fingerprint, run_here
from tests.harness.shard.data_dirs import flip
from topicsd.disk.layout import wal_name


def only_shard(path: Path, code: int) -> Any:
    before = fingerprint(path)
    ran = run_here("inspect", path, "--json")
    assert (ran.code, ran.err) == (code, "")
    assert fingerprint(path) == before
    (shard,) = ran.json["shards"]
    return shard


def numbers(shard: Any) -> dict[str, tuple[int, int, int, int]]:
    return {
        topic["topic"]: (topic["head_seq"], topic["earliest_seq"], topic["count"], topic["bytes"])
        for topic in shard["topics"]
    }


def served_numbers(path: Path) -> dict[str, tuple[int, int, int, int]]:
    shard = started(path)
    numbers = {}
    for name in shard.shard.topic_names():
        state = shard.state(name)
        numbers[name] = (state.head_seq, state.earliest_seq, state.count, state.bytes)
    shard.stop_dead()
    return numbers


def test_heads_and_counts_are_those_of_a_start(tmp_path: Path) -> None:
    kept(tmp_path)
    shard = only_shard(tmp_path, 0)
    assert (shard["snapshot"], shard["starts"]) == (2, True)
    assert numbers(shard) == served_numbers(tmp_path)
    assert any("loads snapshot 2" in note for note in shard["notes"])


def test_a_running_shard_can_be_inspected(tmp_path: Path) -> None:
    kept(tmp_path)
    running = started(tmp_path)
    write(running, 3)
    shard = only_shard(tmp_path, 0)
    assert shard["in_use_by"] == os.getpid()
    assert numbers(shard)["orders"][0] == 44
    running.close()


def test_a_damaged_newest_snapshot_is_reported_and_the_one_before_it_is_used(tmp_path: Path) -> None:
    made = kept(tmp_path)
    flip(made.paths.snapshot(2), 60)
    shard = only_shard(tmp_path, 1)
    assert (shard["snapshot"], shard["starts"]) == (1, True)
    assert "snapshot.00000002.bin is damaged and skipped" in shard["problems"][0]
    assert numbers(shard) == served_numbers(tmp_path)


def test_a_shard_without_a_good_snapshot_cannot_start(tmp_path: Path) -> None:
    made = kept(tmp_path)
    flip(made.paths.snapshot(2), 60)
    flip(made.paths.snapshot(1), 60)
    os.unlink(made.wal_files()[0])
    shard = only_shard(tmp_path, 1)
    assert (shard["snapshot"], shard["starts"]) == (None, False)
    assert "does not reach back" in shard["problems"][0]


def test_damage_that_stops_a_start_is_named(tmp_path: Path) -> None:
    made = kept(tmp_path)
    os.unlink(segment(made, 1, ".del"))
    shard = only_shard(tmp_path, 1)
    assert (shard["snapshot"], shard["starts"]) == (1, True)
    assert "seg-0000000000000001.del" in shard["problems"][0]
    assert numbers(shard) == served_numbers(tmp_path)
    os.unlink(made.paths.snapshot(1))
    shard = only_shard(tmp_path, 1)
    assert not shard["starts"]
    assert "seg-0000000000000001.del" in shard["problems"][0]


def test_damage_that_a_start_does_not_read_is_left_to_verify(tmp_path: Path) -> None:
    made = kept(tmp_path)
    damage(made, 11, 12)
    assert only_shard(tmp_path, 0)["starts"]
    assert run_here("verify", tmp_path).code == 1


def test_frames_before_the_snapshot_are_listed_while_they_exist(tmp_path: Path) -> None:
    made = kept(tmp_path)
    rows = run_here("inspect", tmp_path, "--frames", "--json", "--topic", "orders").json_lines
    assert [row["seq"] for row in rows if row["type"] == "append"] == list(range(1, 42))
    os.unlink(made.wal_files()[0])
    rows = run_here("inspect", tmp_path, "--frames", "--json", "--topic", "orders").json_lines
    assert {row["topic"] for row in rows} == {"orders"}
    assert [row["seq"] for row in rows if row["type"] == "append"][-1] == 41
    assert run_here("inspect", tmp_path, "--frames", "--topic", "missing").code == 2
    names = [wal_name(int(os.path.basename(path)[4:-4])) for path in made.wal_files()]
    shard = only_shard(tmp_path, 0)
    assert [file["name"] for file in shard["files"]] == names
