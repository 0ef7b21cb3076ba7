"""`topicsd doctor`: its report on a damaged directory, its repair, and the start after it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from tests.harness.machine.faults import MUTATING_CALLS, ProcessKilled
from tests.harness.output.command_run import CommandResult, fingerprint, run_here
from tests.harness.shard.data_dirs import DIRECTORIES, flip
from tests.harness.shard.one_shard import RealShard, record
from tests.harness.sweeps.crash_sweep import DEEP
from topicsd.cli import doctor as doctor_dir
from topicsd.disk.fs import RealFs
from topicsd.engine.shard import RecoveryRefused, UnreadableLog
from topicsd.log.frame import HEADER_BYTES
from topicsd.offline.repair import repair as repair_module

SMALL = {"wal_file_bytes": 8192, "segment_max_events": 10}
TOPIC_ID_AT = 6
"""Where a frame has the id of its topic, and then the seq."""
TAGGED = ("t0", "t1", "t2")


class Read(NamedTuple):
    """The seqs and gaps that a reader receives from the start of a topic."""

    seqs: list[int]
    gaps: list[tuple[int, int, str]]


def write(shard: RealShard, count: int) -> None:
    for number in range(count):
        shard.append("orders", record({"n": number, "text": "x" * 50}, tag=TAGGED[number % 3]))


def kept(path: Path) -> RealShard:
    """Build a shard with sealed and active segments, deletes, two snapshots and a log after the newest."""
    shard = RealShard(path, **SMALL)
    shard.put("orders", idempotency_window_ms=60_000)
    shard.append("other", "a", "b")
    write(shard, 25)
    shard.checkpoint()
    shard.delete("orders", tag="t1", before_seq=16)
    write(shard, 10)
    shard.checkpoint()
    write(shard, 6)
    shard.append("other", "c")
    shard.pass_time(60)
    shard.shard.close(checkpoint=False)
    return shard


DELETED = (2, 5, 8, 11, 14)
ALL = [seq for seq in range(1, 42) if seq not in DELETED]


def read_all(shard: RealShard, topic: str = "orders") -> Read:
    seqs: list[int] = []
    gaps: list[tuple[int, int, str]] = []
    cursor = 0
    for _ in range(100):
        answer = shard.read(topic, cursor, limit=1000)
        if answer.tombstone is not None:
            gaps.append((answer.tombstone.gap_from, answer.tombstone.gap_to, answer.tombstone.reason))
        seqs += [one.seq for one in answer.records]
        cursor = answer.next_from_seq
        if cursor == answer.head_seq:
            return Read(seqs, gaps)
    raise AssertionError("the reader comes to no end")


def started(path: Path) -> RealShard:
    return RealShard(path, **SMALL)


def doctor(path: Path, *flags: str, code: int) -> Any:
    ran = run_here("doctor", path, "--json", *flags)
    assert (ran.code, ran.err) == (code, "")
    (shard,) = ran.json["shards"]
    return shard


def unchanged(path: Path, run: Callable[[], CommandResult]) -> CommandResult:
    before = fingerprint(path)
    ran = run()
    assert fingerprint(path) == before
    return ran


def segment(shard: RealShard, first_seq: int, suffix: str) -> Path:
    topic = shard.topic("orders")
    return Path(shard.paths.topic_dir(topic.topic_id, topic.epoch), f"seg-{first_seq:016d}{suffix}")


def damage(shard: RealShard, first_seq: int, seq: int) -> None:
    """Damage one payload byte of a record in a segment."""
    data, topic = segment(shard, first_seq, ".data"), shard.topic("orders")
    at = data.read_bytes().index(topic.topic_id.to_bytes(8, "little") + seq.to_bytes(8, "little"))
    flip(data, at - TOPIC_ID_AT + HEADER_BYTES + 20)


def repaired(path: Path, *flags: str) -> RealShard:
    """Check, plan, repair, check again and start."""
    unchanged(path, lambda: run_here("doctor", path))
    planned = unchanged(path, lambda: run_here("doctor", path, "--repair", *flags))
    assert (planned.code, planned.err) == (1, "")
    done = doctor(path, "--repair", "--apply", *flags, code=0)
    assert done["repaired"]
    assert done["starts"]
    assert run_here("verify", path).code == 0, run_here("verify", path).out
    assert run_here("doctor", path).code == 0
    return started(path)


def check_usable(shard: RealShard, path: Path) -> None:
    """Check that the shard accepts writes and restarts, and uses no seq twice."""
    before = read_all(shard)
    head = shard.state("orders").head_seq
    assert shard.append("orders", "more").first_seq == head + 1
    shard.close()
    assert run_here("verify", path).code == 0, run_here("verify", path).out
    again = started(path)
    assert read_all(again) == ([*before.seqs, head + 1], before.gaps)
    assert read_all(again, "other").seqs[:2] == [1, 2]
    again.close()


@pytest.mark.parametrize(
    "name", ["clean", "killed", "rebooted", "lost_range", "torn_and_gone_on", "of_many_files"]
)
def test_directories_of_the_program_need_no_repair(tmp_path: Path, name: str) -> None:
    DIRECTORIES[name](tmp_path)
    assert "nothing to repair" in unchanged(tmp_path, lambda: run_here("doctor", tmp_path, "--repair")).out
    before = fingerprint(tmp_path / "shards" / "00" / "wal")
    assert not doctor(tmp_path, "--repair", "--apply", code=0)["repaired"]
    assert fingerprint(tmp_path / "shards" / "00" / "wal") == before


def test_a_directory_with_segments_is_fine(tmp_path: Path) -> None:
    kept(tmp_path)
    report = doctor(tmp_path, code=0)
    assert (report["starts"], report["snapshot"], report["findings"], report["plan"]) == (True, 2, [], [])
    shard = started(tmp_path)
    assert read_all(shard) == (ALL, [])
    check_usable(shard, tmp_path)


def test_a_damaged_record_of_a_segment_becomes_a_lost_range(tmp_path: Path) -> None:
    shard = kept(tmp_path)
    damage(shard, 11, 12)
    assert run_here("verify", tmp_path).code == 1
    report = doctor(tmp_path, code=1)
    assert report["starts"]
    assert [(one["level"], one["topic"], one["seq"]) for one in report["findings"]] == [
        ("loss", "orders", 12)
    ]
    repaired_shard = repaired(tmp_path)
    assert read_all(repaired_shard) == ([seq for seq in ALL if seq != 12], [(12, 12, "crash")])
    assert any("seg-" in name for name in os.listdir(repaired_shard.paths.quarantine))
    check_usable(repaired_shard, tmp_path)


def test_a_damaged_record_that_was_deleted_is_no_loss(tmp_path: Path) -> None:
    shard = kept(tmp_path)
    damage(shard, 1, 2)
    repaired_shard = repaired(tmp_path)
    assert read_all(repaired_shard) == (ALL, [])
    check_usable(repaired_shard, tmp_path)


def test_a_missing_segment_becomes_a_lost_range(tmp_path: Path) -> None:
    shard = kept(tmp_path)
    os.unlink(segment(shard, 11, ".data"))
    repaired_shard = repaired(tmp_path)
    assert read_all(repaired_shard) == ([seq for seq in ALL if not 11 <= seq <= 20], [(11, 20, "crash")])
    check_usable(repaired_shard, tmp_path)


def test_a_damaged_active_segment_is_sealed_with_its_good_records(tmp_path: Path) -> None:
    shard = kept(tmp_path)
    data = segment(shard, 31, ".data")
    flip(data, data.stat().st_size - 60)
    repaired_shard = repaired(tmp_path)
    assert read_all(repaired_shard) == ([seq for seq in ALL if seq != 35], [(35, 35, "crash")])
    check_usable(repaired_shard, tmp_path)


@pytest.mark.parametrize("suffix", [".idx", ".tags"])
@pytest.mark.parametrize("change", [lambda path: flip(path, 30), os.unlink])
def test_files_that_derive_from_records_are_written_again(
    tmp_path: Path, suffix: str, change: Callable[[Path], None]
) -> None:
    shard = kept(tmp_path)
    path = segment(shard, 11, suffix)
    before = path.read_bytes()
    change(path)
    report = doctor(tmp_path, code=1)
    assert report["starts"]
    assert [one["level"] for one in report["findings"]] == ["harmless"]
    assert report["loses"] == []
    repaired_shard = repaired(tmp_path)
    assert path.read_bytes() == before
    assert read_all(repaired_shard) == (ALL, [])


@pytest.mark.parametrize("is_repaired", [False, True])
def test_deletes_are_recovered_from_the_older_snapshot_and_its_log(tmp_path: Path, is_repaired: bool) -> None:
    shard = kept(tmp_path)
    flip(segment(shard, 1, ".del"), 41)
    report = doctor(tmp_path, "--repair", code=1)
    assert report["starts"]
    assert [one["level"] for one in report["findings"]] == ["harmless"]
    assert report["loses"] == []
    repaired_shard = repaired(tmp_path) if is_repaired else started(tmp_path)
    assert read_all(repaired_shard) == (ALL, [])
    check_usable(repaired_shard, tmp_path)


def test_unrecoverable_deletes_are_reverted_only_on_request(tmp_path: Path) -> None:
    shard = kept(tmp_path)
    shard = started(tmp_path)
    write(shard, 1)
    shard.checkpoint()
    write(shard, 1)
    shard.checkpoint()
    shard.close()
    os.unlink(segment(shard, 11, ".del"))
    report = doctor(tmp_path, "--repair", "--apply", code=1)
    assert not report["repaired"]
    assert "--revive-deleted" in report["refused"][0]
    with pytest.raises(RecoveryRefused):
        started(tmp_path)
    repaired_shard = repaired(tmp_path, "--revive-deleted")
    assert read_all(repaired_shard) == (sorted([*ALL, 11, 14, 42, 43]), [])
    check_usable(repaired_shard, tmp_path)


def test_a_damaged_newest_snapshot_loses_nothing(tmp_path: Path) -> None:
    shard = kept(tmp_path)
    flip(shard.paths.snapshot(2), 60)
    report = doctor(tmp_path, code=1)
    assert (report["starts"], report["snapshot"], report["loses"]) == (True, 1, [])
    repaired_shard = repaired(tmp_path)
    assert read_all(repaired_shard) == (ALL, [])
    assert "snapshot.00000002.bin.1" in os.listdir(repaired_shard.paths.quarantine)
    check_usable(repaired_shard, tmp_path)


def test_without_a_snapshot_the_manifest_is_used(tmp_path: Path) -> None:
    shard = kept(tmp_path)
    for number in (1, 2):
        flip(shard.paths.snapshot(number), 60)
    for file in shard.wal_files()[:1]:
        os.unlink(file)
    with pytest.raises(UnreadableLog):
        started(tmp_path)
    report = doctor(tmp_path, "--repair", code=1)
    assert not report["starts"]
    assert any("settings" in one for one in report["loses"])
    repaired_shard = repaired(tmp_path)
    assert read_all(repaired_shard) == (ALL, [])
    check_usable(repaired_shard, tmp_path)


def test_without_snapshot_and_manifest_the_repair_refuses_and_changes_nothing(tmp_path: Path) -> None:
    shard = kept(tmp_path)
    for number in (1, 2):
        flip(shard.paths.snapshot(number), 60)
    flip(shard.paths.manifest, 60)
    os.unlink(shard.wal_files()[0])
    before = fingerprint(Path(shard.paths.root))
    report = doctor(tmp_path, "--repair", "--apply", code=1)
    assert not report["repaired"]
    assert "backup" in report["refused"][0]
    assert fingerprint(Path(shard.paths.root)) == before


def last_records(shard: RealShard) -> list[tuple[str, int]]:
    """Return file and offset of the records after the newest snapshot."""
    run = shard.topic("orders").run
    return [shard.shard._files.place_of(position) for position in run.frame_positions]


def broken_log(path: Path) -> RealShard:
    """Damage a byte of a record that is followed by synced records of the topic."""
    shard = RealShard(path, segment_max_events=10)
    shard.append("other", "a", "b")
    shard.append("quiet", "a", "b")
    write(shard, 25)
    shard.checkpoint()
    write(shard, 10)
    name, offset = last_records(shard)[2]
    shard.pass_time(60)
    write(shard, 6)
    shard.pass_time(60)
    shard.shard.close(checkpoint=False)
    flip(os.path.join(shard.paths.wal, name), offset + HEADER_BYTES + 20)
    return shard


def test_damage_in_the_log_is_a_lost_range_and_the_rest_is_kept(tmp_path: Path) -> None:
    broken_log(tmp_path)
    assert run_here("verify", tmp_path).code == 1
    with pytest.raises(RecoveryRefused):
        started(tmp_path)
    report = doctor(tmp_path, "--repair", code=1)
    assert not report["starts"]
    assert report["findings"][0]["level"] == "stops"
    repaired_shard = repaired(tmp_path)
    assert read_all(repaired_shard) == ([seq for seq in range(1, 42) if seq != 28], [(28, 28, "crash")])
    assert any(name.startswith("wal-") for name in os.listdir(repaired_shard.paths.quarantine))
    quiet = repaired_shard.state("quiet")
    assert quiet.head_seq >= 2
    assert repaired_shard.append("quiet", "c").first_seq > 2
    check_usable(repaired_shard, tmp_path)


def test_damage_at_the_end_of_a_cleanly_closed_log(tmp_path: Path) -> None:
    shard = RealShard(tmp_path, **SMALL)
    shard.append("other", "a", "b")
    write(shard, 5)
    name, offset = last_records(shard)[4]
    shard.shard.close(checkpoint=False)
    flip(os.path.join(shard.paths.wal, name), offset + HEADER_BYTES + 20)
    repaired_shard = repaired(tmp_path)
    got = read_all(repaired_shard)
    assert got.seqs == [1, 2, 3, 4]
    assert got.gaps[0][0] == 5
    check_usable(repaired_shard, tmp_path)


def test_a_missing_wal_file(tmp_path: Path) -> None:
    shard = DIRECTORIES["of_many_files"](tmp_path)
    shard.reopen()
    shard.append("other", "a", "b")
    shard.shard.close(checkpoint=False)
    os.unlink(shard.wal_files()[2])
    repaired_shard = repaired(tmp_path)
    got = read_all(repaired_shard)
    (gap,) = got.gaps
    assert got.seqs == [seq for seq in range(1, 41) if not gap[0] <= seq <= gap[1]]
    check_usable(repaired_shard, tmp_path)


def test_an_interrupted_repair_can_be_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_log(tmp_path)

    def fails(*_: object) -> None:
        raise OSError(28, "no room", "somewhere")

    monkeypatch.setattr(repair_module, "write_snapshot", fails)
    ran = run_here("doctor", tmp_path, "--repair", "--apply")
    assert ran.code == 2
    assert "no room" in ran.err
    monkeypatch.undo()
    with pytest.raises((RecoveryRefused, UnreadableLog)):
        started(tmp_path)
    repaired_shard = repaired(tmp_path)
    assert read_all(repaired_shard).seqs == [seq for seq in range(1, 42) if seq != 28]
    check_usable(repaired_shard, tmp_path)


class Dying(RealFs):
    """A file system on which the process dies in the n-th mutating call."""

    def __init__(self, nth: int) -> None:
        self._left = nth

    def __getattribute__(self, name: str) -> Any:
        if name in MUTATING_CALLS and name != "lock":
            self._left -= 1
            if self._left <= 0:
                raise ProcessKilled
        return super().__getattribute__(name)


def broken_segments(path: Path) -> RealShard:
    shard = kept(path)
    damage(shard, 11, 12)
    damage(shard, 31, 33)
    flip(segment(shard, 21, ".idx"), 30)
    flip(shard.paths.snapshot(1), 60)
    return shard


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "lost", "starts"), [(broken_log, [28], False), (broken_segments, [12, 33], True)]
)
def test_a_repair_killed_at_any_call_can_be_run_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    build: Callable[[Path], RealShard],
    lost: list[int],
    starts: bool,
) -> None:
    build(tmp_path / "source")
    expected = [seq for seq in (range(1, 42) if build is broken_log else ALL) if seq not in lost]
    for nth in range(1, 1000, 1 if DEEP else 5):
        path = tmp_path / str(nth)
        shutil.copytree(tmp_path / "source", path)
        monkeypatch.setattr(doctor_dir, "RealFs", lambda nth=nth: Dying(nth))
        try:
            run_here("doctor", path, "--repair", "--apply")
        except ProcessKilled:
            is_over = False
        else:
            is_over = True
        monkeypatch.undo()
        if starts:
            copy = tmp_path / "copy"
            shutil.copytree(path, copy)
            started(copy).stop_dead()
            shutil.rmtree(copy)
        done = run_here("doctor", path, "--repair", "--apply")
        assert done.code == 0, (nth, done.out, done.err)
        shard = started(path)
        got = read_all(shard)
        assert got.seqs == expected, nth
        # Once CURRENT is written, seqs after the last record may have been assigned.
        assert [gap[:2] for gap in got.gaps if gap[0] <= expected[-1]] == [(seq, seq) for seq in lost], nth
        shard.close()
        shutil.rmtree(path)
        if is_over:
            assert nth > 20
            return
    raise AssertionError("it never came to its end")


def test_a_shard_with_a_running_server_is_not_repaired(tmp_path: Path) -> None:
    shard = kept(tmp_path)
    flip(segment(shard, 11, ".data"), 200)
    running = started(tmp_path)
    ran = run_here("doctor", tmp_path, "--repair", "--apply")
    assert ran.code == 2
    assert "stop the server first" in ran.err
    assert run_here("doctor", tmp_path).code == 1
    running.close()


def test_a_log_of_a_newer_program_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path)
    monkeypatch.setattr("topicsd.log.file_header.VERSION", 0)
    report = doctor(tmp_path, "--repair", "--apply", code=1)
    assert not report["repaired"]
    assert "version" in report["refused"][0]
    assert report["plan"] == []


def test_apply_alone_is_refused(tmp_path: Path) -> None:
    kept(tmp_path)
    ran = run_here("doctor", tmp_path, "--apply")
    assert ran.code == 2
    assert "--repair" in ran.err


@pytest.mark.slow
@pytest.mark.usefixtures("quiet_log")
@pytest.mark.parametrize("seed", range(200 if DEEP else 30))
def test_no_answer_is_wrong_after_any_changed_byte(tmp_path: Path, seed: int) -> None:
    shard = kept(tmp_path)
    random = Random(seed)
    files = [
        path for path in sorted(Path(shard.paths.root).rglob("*")) if path.is_file() and path.stat().st_size
    ]
    path = random.choice(files)
    flip(path, random.randrange(len(path.read_bytes().rstrip(b"\0"))))
    looked_at = run_here("verify", tmp_path)
    (done,) = run_here("doctor", tmp_path, "--json", "--repair", "--apply").json["shards"]
    assert not done["refused"]
    assert done["starts"]
    got = read_all(started(tmp_path))
    gone = {seq for first, last, _ in got.gaps for seq in range(first, last + 1)}
    assert got.seqs == [seq for seq in ALL if seq not in gone], (path, looked_at.out)
    assert looked_at.code == 1 or not gone
