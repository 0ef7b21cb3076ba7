"""What pressure asks of group commit: syncs apart from each other, and no writes where much waits already."""

from __future__ import annotations

from functools import partial

import pytest
from msgspec import UNSET

from tests.unit.log.commit_bench import BOUNDS, FRAME, CommitBench
from topicsd.log.batch import CommitTimes

WINDOW_SECONDS = 0.01


def synced_once() -> CommitBench:
    """A sync is just over, and the next one is to begin a window behind its beginning."""
    bench = CommitBench()
    bench.log.apply_pressure(WINDOW_SECONDS, is_pressed=False)
    bench.join("first", sync=True)
    bench.settle()
    assert bench.diary == ["publish first"]
    bench.diary.clear()
    return bench


def test_the_first_sync_does_not_wait() -> None:
    bench = synced_once()
    bench.pass_time(20)
    bench.join("later", sync=True)
    bench.settle()
    assert bench.diary == ["publish later"]


def test_those_who_come_in_a_window_share_the_sync_at_its_end() -> None:
    bench = synced_once()
    before, timers = bench.log.counters.syncs, bench.loop.timer_count
    for name in "abc":
        bench.pass_time(3)
        bench.join(name, sync=True)
        bench.settle()
        assert bench.loop.timer_count <= timers + 1
    assert bench.diary == []
    bench.pass_time(1.1)
    assert bench.diary == ["publish a", "publish b", "publish c"]
    assert bench.log.counters.syncs == before + 1


def test_answers_report_how_long_the_window_held_their_sync() -> None:
    bench = synced_once()
    seen: dict[str, CommitTimes] = {}

    def look(name: str) -> None:
        seen[name] = bench.log.published_times

    bench.join("disk", sync=False, answer=lambda: look("disk"))
    bench.pass_time(4)
    for name in "ab":
        bench.join(name, sync=True, answer=partial(look, name))
        bench.settle()
    bench.pass_time(7)
    bench.pass_time(20)
    bench.join("later", sync=True, answer=lambda: look("later"))
    bench.settle()
    assert seen["a"].throttle == seen["b"].throttle == pytest.approx(6, abs=0.2)
    assert seen["disk"].throttle is seen["later"].throttle is UNSET


def test_a_single_writer_waits_for_a_window_only_once() -> None:
    bench = synced_once()
    bench.join("a", sync=True)
    bench.pass_time(9)
    assert bench.diary == []
    bench.pass_time(1.1)
    assert bench.diary == ["publish a"]
    for name in "bc":
        bench.join(name, sync=True)
        bench.settle()
    assert bench.diary == ["publish a", "publish b", "publish c"]
    # It is tried again when pressure was looked at again.
    bench.log.apply_pressure(WINDOW_SECONDS, is_pressed=False)
    bench.join("d", sync=True)
    bench.settle()
    assert bench.diary[3:] == []
    bench.pass_time(10)
    assert bench.diary[3:] == ["publish d"]


def test_who_waits_for_no_sync_does_not_wait_for_the_window() -> None:
    bench = synced_once()
    bench.join("waits", sync=True)
    bench.settle()
    bench.join("does not", sync=False)
    bench.settle()
    assert bench.diary == ["publish does not"]


def test_a_window_that_was_closed_is_no_window_any_more() -> None:
    bench = synced_once()
    bench.log.apply_pressure(0.0, is_pressed=False)
    bench.join("a", sync=True)
    bench.settle()
    assert bench.diary == ["publish a"]


def test_the_end_waits_for_no_window() -> None:
    bench = synced_once()
    bench.join("a", sync=True)
    bench.turn()
    bench.log.close()
    assert bench.diary == ["publish a"]
    bench.pass_time(20)


def test_a_log_that_fails_in_a_window_is_not_synced_at_its_end() -> None:
    bench = synced_once()
    entry = bench.join("a", sync=True)
    bench.settle()
    bench.log._fail(OSError(5, "a test"))
    assert entry.refusal is not None
    syncs = bench.syncs()
    bench.pass_time(100)
    assert bench.syncs() == syncs


def test_a_sync_of_the_background_takes_along_who_waits_for_the_window() -> None:
    bench = CommitBench(bounds=BOUNDS._replace(sync_interval_seconds=0.004))
    bench.log.apply_pressure(1.0, is_pressed=False)
    bench.join("first", sync=True)
    bench.settle()
    bench.join("a", sync=True)
    bench.pass_time(5)
    assert bench.diary == ["publish first", "publish a"]
    bench.pass_time(2000)


def test_without_pressure_half_of_the_bound_is_no_reason_to_refuse() -> None:
    bench = CommitBench(bounds=BOUNDS._replace(waiting_entries_max=4))
    for name in "abc":
        bench.join(name, sync=True)
        bench.turn()
    assert bench.log.admit(1) is None


@pytest.mark.parametrize("in_spite_of_pressure", [False, True])
def test_under_pressure_half_of_the_bound_is_where_writes_are_refused(in_spite_of_pressure: bool) -> None:
    bench = CommitBench(bounds=BOUNDS._replace(waiting_entries_max=4))
    bench.log.apply_pressure(0.0, is_pressed=True)
    # A caller that compares only with the limit must call `admit`.
    assert bench.log.admit_limit == -1
    bench.join("a", sync=True)
    bench.turn()
    assert bench.log.admit(1) is None
    bench.join("b", sync=True)
    bench.turn()
    refusal = bench.log.admit(1, in_spite_of_pressure)
    if in_spite_of_pressure:
        assert refusal is None
        bench.join("c", sync=True)
        bench.join("d", sync=True)
        bench.turn()
        refusal = bench.log.admit(1, in_spite_of_pressure)
        # The bound itself holds for everybody.
        assert refusal is not None
        assert "too many writes wait" in refusal.message
        assert bench.log.counters.refused_under_pressure == 0
    else:
        assert refusal is not None
        assert (refusal.code, refusal.retry_after_ms) == ("throttled", 1000)
        assert (bench.log.counters.refused, bench.log.counters.refused_under_pressure) == (0, 1)
    bench.settle()
    assert bench.log.admit(1) is None


def test_under_pressure_half_of_the_unsynced_bytes_is_where_writes_are_refused() -> None:
    bench = CommitBench(bounds=BOUNDS._replace(unsynced_bytes_max=2000))
    bench.log.apply_pressure(0.0, is_pressed=True)
    while bench.log.admit(len(FRAME)) is None:
        bench.join("fills", sync=False)
        bench.turn()
    assert 1000 < bench.log.unsynced_bytes < 1000 + 3 * len(FRAME)
    bench.pass_time(51)
    assert bench.log.admit(len(FRAME)) is None
    bench.log.apply_pressure(0.0, is_pressed=False)
    assert bench.log.admit_limit > 0


def test_the_time_spent_in_syncs_has_the_one_that_is_under_way() -> None:
    bench = CommitBench()
    bench.join("a", sync=True)
    bench.turn()
    began = bench.clock.monotonic()
    assert bench.log.sync_seconds_at(began) == 0.0
    assert bench.log.sync_seconds_at(began + 3.0) == 3.0
    bench.sync()
    assert bench.log.sync_seconds_at(began + 3.0) == bench.log.counters.sync_seconds
