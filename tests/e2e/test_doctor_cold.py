"""`topicsd doctor` with a missing cold directory: its segments are dropped only on request."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_doctor import SMALL, doctor, read_all, segment, unchanged, write
from tests.e2e.test_seal_and_adopt import append, ask, eventually, servers
from tests.harness.output.command_run import fingerprint, run_here
from tests.harness.shard.data_dirs import flip
from tests.harness.shard.one_shard import RealShard
from topicsd.engine.upkeep.upkeep import ROUND_SECONDS
from topicsd.segment.entry import COLD

ALL = [seq for seq in range(1, 56) if seq not in (2, 5, 8)]


class ColdDirectory:
    """A data directory with cold segments and a log after the newest snapshot."""

    def __init__(self, path: Path, *, has_newer_snapshots: bool = True) -> None:
        self.data, self.cold, self.away = path / "data", path / "cold", path / "away"
        self.cold.mkdir()
        shard = self.started()
        write(shard, 45)
        shard.delete("orders", tag="t1", before_seq=10)
        shard.checkpoint()
        shard.pass_time(ROUND_SECONDS * 1000 + 1)
        shard.settle()
        if has_newer_snapshots:
            shard.checkpoint()
            write(shard, 6)
            shard.checkpoint()
            write(shard, 4)
        shard.pass_time(60)
        self.shard = shard
        self.paths = shard.paths
        entries = [run.entry for run in shard.topic("orders").runs if hasattr(run, "entry")]
        self.moved = [entry.first_seq for entry in entries if entry.tier == COLD]
        assert self.moved == [1, 11, 21]
        shard.shard.close(checkpoint=False)

    def started(self) -> RealShard:
        settings: dict[str, Any] = {**SMALL, "cold_dir": str(self.cold), "hot_retain_segments": 1}
        return RealShard(self.data, **settings)

    def snapshots(self) -> list[Path]:
        return sorted(Path(self.paths.meta).glob("snapshot.*.bin"))

    def unmount(self, leaves: str) -> None:
        os.rename(self.cold, self.away)
        if leaves == "empty":
            self.cold.mkdir()
        elif leaves == "newer":
            # Written by a server that ran without the mount.
            moved = next(self.away.rglob("*seg-0000000000000021-*.data"))
            target = self.cold / moved.relative_to(self.away)
            target.parent.mkdir(parents=True)
            for file in moved.parent.glob("*seg-0000000000000021-*"):
                (target.parent / file.name).write_bytes(file.read_bytes())

    def mount(self) -> None:
        if self.cold.exists():
            os.rename(self.cold, self.cold.with_name("below"))
        os.rename(self.away, self.cold)


@pytest.mark.parametrize("leaves", ["nothing", "empty", "newer"])
@pytest.mark.parametrize("bad_snapshot", [False, True])
def test_segments_of_an_unmounted_cold_directory_are_not_dropped(
    tmp_path: Path, leaves: str, bad_snapshot: bool
) -> None:
    directory = ColdDirectory(tmp_path)
    if bad_snapshot:
        flip(directory.snapshots()[-1], 60)
    directory.unmount(leaves)
    missing = 2 if leaves == "newer" else 3
    ran = unchanged(directory.data, lambda: run_here("verify", directory.data))
    assert ran.code == 1
    # An object that is missing beside others may be lost; the others may be on a disk that is not mounted.
    text = "nor file:///" if leaves == "newer" else "the object store does not answer"
    assert " ".join(ran.out.split()).count(text) == missing
    done = doctor(directory.data, "--repair", "--apply", code=1)
    assert done["loses"] == []
    (refused,) = done["refused"]
    assert f"{missing} of 3 cold segments" in refused
    assert str(directory.cold) in refused
    assert "mounted" in refused
    assert "--give-up-cold" in refused
    assert {one["level"] for one in done["findings"]} == {"loss"}
    directory.mount()
    assert doctor(directory.data, code=0)["findings"] == []
    assert read_all(directory.started()) == (ALL, [])


def test_the_local_files_stay_while_an_older_snapshot_needs_them(tmp_path: Path) -> None:
    """It does not know the objects, and the newest one, which does, is damaged."""
    directory = ColdDirectory(tmp_path, has_newer_snapshots=False)
    _, newest = directory.snapshots()
    flip(newest, 60)
    directory.unmount("nothing")
    done = doctor(directory.data, "--repair", "--apply", code=0)
    assert (done["loses"], done["refused"]) == ([], [])
    assert read_all(directory.started()) == (ALL[:-10], [])


def test_other_damage_is_repaired_meanwhile(tmp_path: Path) -> None:
    directory = ColdDirectory(tmp_path)
    directory.unmount("nothing")
    flip(segment(directory.shard, 31, ".data"), 200)
    done = doctor(directory.data, "--repair", "--apply", code=1)
    assert done["repaired"]
    assert len(done["refused"]) == 1
    directory.mount()
    assert doctor(directory.data, code=0)["findings"] == []
    got = read_all(directory.started())
    assert got.gaps == [(31, 31, "crash")]
    assert got.seqs == [seq for seq in ALL if seq != 31]


def test_nothing_is_changed_with_a_damaged_log(tmp_path: Path) -> None:
    directory = ColdDirectory(tmp_path)
    directory.unmount("nothing")
    newest = directory.shard.wal_files()[-1]
    flip(newest, len(Path(newest).read_bytes().rstrip(b"\0")) - 100)
    before = fingerprint(Path(directory.paths.root))
    done = doctor(directory.data, "--repair", "--apply", code=1)
    assert not done["repaired"]
    assert "--give-up-cold" in done["refused"][0]
    assert fingerprint(Path(directory.paths.root)) == before
    given_up = doctor(directory.data, "--repair", "--apply", "--give-up-cold", code=0)
    assert given_up["repaired"]


def test_cold_segments_are_dropped_on_request(tmp_path: Path) -> None:
    directory = ColdDirectory(tmp_path)
    directory.unmount("nothing")
    done = doctor(directory.data, "--repair", "--apply", "--give-up-cold", code=0)
    assert done["repaired"]
    got = read_all(directory.started())
    assert got.seqs == [seq for seq in ALL if seq > 30]
    assert got.gaps[0][2] == "crash"


def test_doctor_does_not_claim_that_an_unstartable_server_starts(tmp_path: Path) -> None:
    directory = ColdDirectory(tmp_path)
    for snapshot in directory.snapshots():
        flip(snapshot, 60)
    os.unlink(directory.shard.wal_files()[0])
    ran = run_here("doctor", directory.data)
    assert "cannot start: " in ran.out
    assert "a server can start" not in ran.out
    assert f"topicsd doctor {directory.data} --repair" in " ".join(ran.out.split())


OBJECT_FAULTS: dict[str, Callable[[Path], object]] = {
    "records": lambda stem: flip(f"{stem}.data", 200),
    "index": lambda stem: flip(f"{stem}.idx", 30),
    "tags": lambda stem: flip(f"{stem}.tags", 12),
    "missing": lambda stem: os.unlink(f"{stem}.idx"),
}


@pytest.mark.parametrize("fault", OBJECT_FAULTS)
def test_verify_checks_the_objects_of_a_segment_that_is_local_too(tmp_path: Path, fault: str) -> None:
    directory = ColdDirectory(tmp_path, has_newer_snapshots=False)
    assert run_here("verify", directory.data).code == 0
    (data,) = directory.cold.rglob("*seg-0000000000000011-*.data")
    OBJECT_FAULTS[fault](data.with_suffix(""))
    ran = run_here("verify", directory.data, "--json")
    (problem,) = [one for shard in ran.json["shards"] for one in shard["problems"]]
    # Nodes that adopt the topic, and readers of the store, have no other copy.
    assert (ran.code, problem["level"], problem["topic"]) == (1, "loss", "orders")
    assert str(data.with_suffix("")) in problem["what"]
    local = f"{directory.paths.root}/topics/"
    assert f"the local copy is the only whole one: copy {local}" in problem["what"]
    diagnosis = doctor(directory.data, "--repair", "--apply", code=1)
    assert [one["level"] for one in diagnosis["findings"]] == ["loss"]
    assert (diagnosis["loses"], diagnosis["refused"]) == ([], [])
    assert read_all(directory.started()) == (ALL[:-10], [])


@pytest.mark.parametrize("fault", ["missing", "damaged"])
def test_verify_says_what_a_server_does_with_the_local_copy_of_an_exported_segment(
    tmp_path: Path, fault: str
) -> None:
    one, _ = servers(tmp_path)
    with one:
        append(one, "orders", *range(25))
        eventually(lambda: ask(one, "GET", "orders/owner")[1].get("exported_to", 0) >= 20)
        # The next checkpoint has the names of the objects.
        append(one, "orders", *range(25))
        eventually(lambda: ask(one, "GET", "orders/owner")[1]["exported_to"] >= 40)
        assert one.stop() == 0
    data = min((tmp_path / "objects").rglob("*.data"))
    if fault == "missing":
        data.unlink()
    else:
        flip(str(data), 200)
    ran = run_here("verify", tmp_path / "a" / "data", "--json")
    (problem,) = [one for shard in ran.json["shards"] for one in shard["problems"]]
    assert (ran.code, problem["level"], problem["topic"]) == (1, "loss", "orders")
    advice = "a server keeps it" if fault == "missing" else "delete the object, so that a server keeps it"
    assert problem["what"].endswith(f"the local copy is the only whole one: {advice}")


def test_verify_notes_that_the_store_is_away(tmp_path: Path) -> None:
    directory = ColdDirectory(tmp_path, has_newer_snapshots=False)
    directory.unmount("nothing")
    ran = run_here("verify", directory.data, "--json")
    assert ran.code == 0
    (note,) = [note for shard in ran.json["shards"] for note in shard["notes"]]
    assert "not checked" in note
    assert "is it mounted?" in note
