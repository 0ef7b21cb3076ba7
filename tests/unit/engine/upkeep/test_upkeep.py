"""Segments move, are written anew and are looked at, and every record reads as before."""

from __future__ import annotations

import contextlib
import errno
import logging
from typing import Any

import msgspec
import pytest

from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.records.sealed_run import SealedRun
from topicsd.engine.upkeep import scrub_pass, upkeep
from topicsd.engine.upkeep.scrub_pass import FIRST_SCRUB_SECONDS
from topicsd.engine.upkeep.tiering import Exported
from topicsd.engine.upkeep.upkeep import ROUND_SECONDS
from topicsd.segment.entry import COLD, HOT, SegmentDamage

COLD_DIR = "/cold"


def sealed(one: OneShard) -> list[SealedRun]:
    return [run for run in one.topic("t").runs if isinstance(run, SealedRun)]


def filled(count: int, **settings: object) -> OneShard:
    """Segments of ten records each."""
    one = OneShard(segment_max_events=10, reader_grace_ms=0, **settings)
    for number in range(count):
        one.append("t", record("x" * 100 + str(number), tag=f"tag-{number % 3}"))
    one.checkpoint()
    return one


def data_files(one: OneShard, root: str) -> int:
    return sum(
        path.startswith(f"{root}/") and path.endswith(".data") and "/trash/" not in path
        for path in one.disk.all_files()
    )


def a_round(one: OneShard) -> None:
    one.pass_time(ROUND_SECONDS * 1000 + 1)


def test_all_but_the_newest_segments_move_to_the_cold_directory() -> None:
    one = filled(95, cold_dir=COLD_DIR, hot_retain_segments=2)
    before = [record.data for record in one.read("t", limit=1000).records]
    a_round(one)
    assert [run.entry.tier for run in sealed(one)] == [COLD] * 7 + [HOT] * 2
    one.checkpoint()
    one.checkpoint()
    assert data_files(one, COLD_DIR) == 7
    assert data_files(one, "/data/shards/00") == 2 + 1, "the active one is hot too"
    for end in ("kill", "restart"):
        getattr(one, end)()
        assert [record.data for record in one.read("t", limit=1000).records] == before
        assert [run.entry.tier for run in sealed(one)][:9] == [COLD] * 7 + [HOT] * 2


def test_bytes_bound_what_stays_hot_as_well() -> None:
    one = filled(95, cold_dir=COLD_DIR, hot_retain_segments=8, hot_retain_bytes=3000)
    a_round(one)
    hot = [run for run in sealed(one) if run.entry.tier == HOT]
    assert 0 < sum(run.entry.data_bytes for run in hot) <= 3000


def test_without_a_cold_directory_nothing_moves() -> None:
    one = filled(95)
    a_round(one)
    assert {run.entry.tier for run in sealed(one)} == {HOT}


@pytest.mark.parametrize("cold_dir", ["", COLD_DIR])
def test_a_segment_that_is_mostly_dead_gives_its_space_back(cold_dir: str) -> None:
    one = filled(40, cold_dir=cold_dir, hot_retain_segments=0)
    a_round(one)
    one.delete("t", tag="tag-0")
    one.delete("t", tag="tag-1")
    before = one.read("t", limit=1000)
    state = one.state("t")
    size = sum(run.entry.data_bytes for run in sealed(one))
    a_round(one)
    assert {run.entry.generation for run in sealed(one)} == {1}
    assert sum(run.entry.data_bytes for run in sealed(one)) < size * 0.6
    for end in ("checkpoint", "kill", "restart"):
        getattr(one, end)()
        assert one.read("t", limit=1000).records == before.records
        assert (one.state("t").count, one.state("t").bytes) == (state.count, state.bytes)
    assert one.delete("t", tag="tag-2").deleted == state.count


@pytest.mark.parametrize("cold_dir", ["", COLD_DIR])
def test_a_segment_in_the_middle_in_which_nothing_is_alive_gives_its_space_back(cold_dir: str) -> None:
    one = OneShard(segment_max_events=10, reader_grace_ms=0, cold_dir=cold_dir, hot_retain_segments=0)
    for number in range(45):
        one.append("t", record(number, tag="keep" if number // 10 in (0, 3) else "drop"))
    one.checkpoint()
    a_round(one)
    one.delete("t", tag="drop")
    for _ in range(3):
        one.checkpoint()
        a_round(one)
    root = cold_dir or "/data/shards/00"
    assert [run.first_seq for run in sealed(one)] == [1, 31]
    assert data_files(one, root) == 2 + (not cold_dir)
    kept = [*range(1, 11), *range(31, 41)]
    for end in ("checkpoint", "kill", "restart"):
        getattr(one, end)()
        assert one.seqs("t") == kept
        assert one.seqs("t", 15) == kept[10:]
        assert one.state("t").count == 20
        assert one.delete("t", tag="drop").deleted == 0
    assert one.append("t", "more").first_seq == 46


def test_an_active_segment_is_sealed_by_its_age_where_nothing_is_written_any_more() -> None:
    one = filled(5, segment_max_age_ms=1000)
    assert not sealed(one)
    a_round(one)
    assert [run.next_seq for run in sealed(one)] == [6]
    count = one.shard.checkpoints.count
    a_round(one)
    assert one.shard.checkpoints.count == count


def test_an_age_of_0_seals_nothing_where_nothing_is_written() -> None:
    one = filled(5, segment_max_age_ms=0)
    a_round(one)
    assert not sealed(one)


def test_a_segment_that_is_gone_when_its_turn_comes_is_no_damage(caplog: pytest.LogCaptureFixture) -> None:
    one = filled(40)
    one.delete("t", tag="tag-0")
    one.delete("t", tag="tag-1")
    job = one.shard.upkeep._round()
    step, answer = next(job), None
    while not callable(step):
        step = job.send(None)
    # The first one is being rewritten.
    one.delete("t", before_seq=25)
    one.checkpoint()
    one.checkpoint()
    with contextlib.suppress(StopIteration):
        while True:
            answer = step() if callable(step) else None
            step = job.send(answer)
    assert not one.shard.state.damaged_segments
    assert [run.name.generation for run in sealed(one)] == [1, 1]
    assert one.seqs("t") == [27, 30, 33, 36, 39]


def test_what_is_deleted_while_a_segment_is_rewritten_stays_deleted() -> None:
    one = filled(10)
    one.delete("t", tag="tag-0")
    one.delete("t", tag="tag-1")
    one.shard.upkeep.start_round()
    while not one.disk.list_dir("/data/shards/00/topics"):
        one.turn()
    one.loop.run_turn()
    one.loop.run_turn()
    one.thread.run_one()
    one.delete("t", before_seq=4)
    one.settle()
    assert one.seqs("t") == [6, 9]
    one.checkpoint()
    one.kill()
    assert one.seqs("t") == [6, 9]
    assert one.state("t").count == 2


def test_age_evicts_from_an_idle_topic() -> None:
    one = filled(40)
    one.put("t", ttl_ms=1000)
    one.pass_time(2000)
    assert len(one.topic("t").runs) > 1, "no request evicted yet"
    a_round(one)
    one.checkpoint()
    assert len(one.topic("t").runs) == 1
    assert one.state("t").evict_floor == 41
    assert data_files(one, "/data/shards/00") == 0


def test_damage_is_found_before_a_reader_finds_it(caplog: pytest.LogCaptureFixture) -> None:
    one = filled(40)
    run = sealed(one)[1]
    path = f"/data/shards/00/{run.name.key('.data')}"
    one.disk.flip(path, run.index.offsets[3] + 50)
    one.pass_time(FIRST_SCRUB_SECONDS * 1000 + ROUND_SECONDS * 2000)
    assert one.shard.state.damaged_segments == {run.name}
    assert "seqs 14 to 14" in caplog.text
    refusal = one.refused_read("t", 13)
    assert refusal.detail is not None
    assert (refusal.detail["first_seq"], refusal.detail["next_from_seq"]) == (14, 14)
    assert one.seqs("t", 14)[0] == 15


def test_what_is_old_is_looked_at_for_long_and_the_rest_of_a_round_has_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = filled(60, cold_dir=COLD_DIR, hot_retain_segments=100)
    state = one.shard.state
    moved = []

    def slow(*of: object) -> list[SegmentDamage]:
        one.clock.advance(25_000)
        moved.append(sum(run.entry.tier == COLD for run in sealed(one)))
        state.settings = msgspec.structs.replace(state.settings, hot_retain_segments=2)
        return []

    monkeypatch.setattr(scrub_pass, "_read_whole", slow)
    one.clock.advance(FIRST_SCRUB_SECONDS * 1000)
    one.settle()
    assert moved == [0, 0, 0, 4, 4, 4]
    a_round(one)
    assert len(moved) == 6


@pytest.mark.parametrize("cold_dir", ["", "/elsewhere"])
def test_a_start_without_the_cold_directory_says_so_and_serves_the_rest(
    cold_dir: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = filled(95, cold_dir=COLD_DIR, hot_retain_segments=2)
    a_round(one)
    one.checkpoint()
    one.checkpoint()
    one.close()
    one.settings = msgspec.structs.replace(one.settings, cold_dir=cold_dir)
    one.open(one.disk)
    one.settle()
    cause = "exports paused: [Errno 2] no such folder" if cold_dir else "7 segments are unreachable"
    assert f"object store: {cause}" in caplog.text
    refusal = one.refused_read("t")
    assert (refusal.code, refusal.retry_after_ms) == ("store_unavailable", 1000)
    assert not one.shard.state.damaged_segments
    assert one.seqs("t", 70)[0] == 71
    assert one.append("t", 1).first_seq == 96


def test_nothing_moves_to_a_cold_directory_that_is_not_mounted(caplog: pytest.LogCaptureFixture) -> None:
    one = filled(65, cold_dir=COLD_DIR, hot_retain_segments=4)
    a_round(one)
    assert [run.entry.tier for run in sealed(one)] == [COLD] * 2 + [HOT] * 4
    one.delete("t", tag="tag-0")
    one.delete("t", tag="tag-1")
    mounted = {path: one.disk.read_file(path) for path in one.disk.all_files() if path.startswith(COLD_DIR)}
    for path in mounted:
        one.disk.unlink(path)
    one.restart()
    one.append("t", *range(20))
    one.pass_time(FIRST_SCRUB_SECONDS * 1000 + ROUND_SECONDS * 3000)
    assert [run.entry.tier for run in sealed(one)] == [COLD] * 2 + [HOT] * 7
    assert not [path for path in one.disk.all_files() if path.startswith(COLD_DIR)]
    assert caplog.text.count("file:///cold: none of its segments found") == 1
    assert not one.shard.state.damaged_segments
    for path, data in mounted.items():
        one.disk.write_file(path, data)
    for _ in range(4):
        a_round(one)
    assert [run.entry.tier for run in sealed(one)] == [COLD] * 5 + [HOT] * 4
    assert {run.entry.generation for run in sealed(one)[:6]} == {1}
    assert one.seqs("t")[:5] == [3, 6, 9, 12, 15]


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_a_shard_starts_without_the_cold_directory_also_when_segments_there_were_rewritten(end: str) -> None:
    one = filled(65, cold_dir=COLD_DIR, hot_retain_segments=4)
    a_round(one)
    one.delete("t", tag="tag-0")
    one.delete("t", tag="tag-1")
    a_round(one)
    assert {(run.entry.tier, run.entry.generation) for run in sealed(one)[:2]} == {(HOT, 1)}
    a_round(one)
    a_round(one)
    state = one.state("t")
    assert {(run.entry.tier, run.entry.generation) for run in sealed(one)[:2]} == {(COLD, 1)}
    one.checkpoint()
    one.checkpoint()
    for path in one.disk.all_files():
        if path.startswith(COLD_DIR):
            one.disk.unlink(path)
    getattr(one, end)()
    assert one.state("t") == state
    assert one.refused_read("t").code == "corrupt_segment"
    assert one.seqs("t", 20)[:2] == [21, 24]


def test_long_moves_end_a_round_and_the_next_round_continues_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = filled(60, cold_dir=COLD_DIR, hot_retain_segments=0)
    count, counts = one.shard.checkpoints.count, []
    copy = upkeep.export_segment

    def slow(*of: Any) -> Exported:
        exported = copy(*of)
        one.clock.advance(25_000)
        counts.append(one.shard.checkpoints.count - count)
        return exported

    monkeypatch.setattr(upkeep, "export_segment", slow)
    one.clock.advance(ROUND_SECONDS * 1000)
    while len(counts) < 6:
        one.settle()
        one.clock.advance(100)
    assert counts == [0, 0, 0, 1, 1, 1]
    one.settle()
    assert [run.entry.tier for run in sealed(one)] == [COLD] * 6


def test_a_file_that_cannot_be_opened_now_does_not_keep_the_others_from_being_looked_at(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = filled(40)
    last = sealed(one)[2]
    one.disk.flip(f"/data/shards/00/{last.name.key('.data')}", last.index.offsets[3] + 50)
    one.restart()
    fault = one.disk.fail("open_read", error=errno.EMFILE)
    with caplog.at_level(logging.WARNING):
        one.pass_time(FIRST_SCRUB_SECONDS * 1000 + ROUND_SECONDS * 2000)
    assert fault.fired
    assert "scrub: segment" in caplog.text
    assert one.shard.state.damaged_segments == {last.name}
