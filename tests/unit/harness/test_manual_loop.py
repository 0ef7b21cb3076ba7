"""Time, callbacks and jobs advance only on request, in the order of asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shared.runtime.clock import Clock
from tests.harness.machine.faults import PowerCut
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop, StepThread


def test_wall_time_can_step_back_while_monotonic_time_advances() -> None:
    manual = ManualClock(now_ms=1_000_000)
    clock: Clock = manual
    before = clock.monotonic()
    manual.advance(1500)
    manual.step_wall(-60_000)
    assert clock.now_ms() == 1_000_000 + 1500 - 60_000
    assert clock.monotonic() - before == pytest.approx(1.5)


def test_parts_of_a_millisecond_add_up() -> None:
    clock = ManualClock(now_ms=0)
    for _ in range(1000):
        clock.advance(0.1)
    assert clock.now_ms() == 100


def test_a_callback_scheduled_in_a_turn_runs_in_the_next() -> None:
    loop = ManualLoop(ManualClock())
    seen: list[str] = []

    def first() -> None:
        seen.append("first")
        loop.call_soon(seen.append, "second")

    loop.call_soon(first)
    assert loop.run_turn() == 1
    assert seen == ["first"]
    loop.run_until_idle()
    assert seen == ["first", "second"]
    assert loop.run_turn() == 0


def test_timers_run_at_their_times_and_their_callbacks_in_between() -> None:
    clock = ManualClock(now_ms=0)
    loop = ManualLoop(clock)
    seen: list[tuple[str, int]] = []

    def note(name: str) -> None:
        seen.append((name, clock.now_ms()))

    def early() -> None:
        note("early")
        loop.call_soon(note, "soon")
        loop.call_later(0.005, note, "mid")

    loop.call_later(0.020, note, "late")
    loop.call_later(0.010, early)
    loop.call_later(0.010, note, "early too")
    loop.call_later(0.031, note, "not yet")
    loop.advance(30)
    assert seen == [("early", 10), ("early too", 10), ("soon", 10), ("mid", 15), ("late", 20)]
    assert clock.now_ms() == 30
    assert loop.timer_count == 1


def test_the_order_is_that_of_asyncio() -> None:
    def play(loop: Any) -> list[str]:
        seen: list[str] = []

        def first() -> None:
            seen.append("a")
            loop.call_soon(seen.append, "d")

        loop.call_soon(first)
        loop.call_soon_threadsafe(seen.append, "b")
        loop.call_soon(seen.append, "never").cancel()
        loop.call_soon(seen.append, "c")
        return seen

    manual = ManualLoop(ManualClock())
    mine = play(manual)
    manual.run_until_idle()

    async def real() -> list[str]:
        seen = play(asyncio.get_running_loop())
        for _ in range(5):
            await asyncio.sleep(0)
        return seen

    assert mine == asyncio.run(real()) == ["a", "b", "c", "d"]


def test_a_cancelled_timer_does_not_run_and_does_not_hold_up_time() -> None:
    loop = ManualLoop(ManualClock())
    seen: list[str] = []
    handle = loop.call_later(0.010, seen.append, "never")
    handle.cancel()
    assert handle.cancelled()
    assert loop.next_timer_ns() is None
    loop.advance(20)
    assert seen == []


def test_an_exception_leaves_the_driver_and_later_callbacks_stay_ready() -> None:
    loop = ManualLoop(ManualClock())
    seen: list[str] = []

    def cut() -> None:
        raise PowerCut("now")

    loop.call_soon(cut)
    loop.call_soon(seen.append, "behind")
    with pytest.raises(PowerCut):
        loop.run_until_idle()
    assert seen == []
    loop.run_until_idle()
    assert seen == ["behind"]


def test_a_loop_that_never_becomes_idle_is_an_error() -> None:
    loop = ManualLoop(ManualClock())

    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(AssertionError, match="still busy"):
        loop.run_until_idle()


def test_jobs_run_one_at_a_time_and_their_results_arrive_through_the_loop() -> None:
    loop = ManualLoop(ManualClock())
    thread = StepThread(loop)
    seen: list[object] = []
    failure = OSError(5, "Input/output error")

    def fail() -> int:
        raise failure

    thread.submit(lambda: 1, seen.append)
    thread.submit(fail, seen.append)
    thread.submit(lambda: 3, seen.append)
    assert thread.pending == 3
    assert thread.run_one()
    assert seen == []
    loop.run_until_idle()
    assert seen == [1]
    assert thread.run_all() == 2
    assert not thread.run_one()
    loop.run_until_idle()
    assert seen == [1, failure, 3]


def test_a_stopped_thread_finishes_its_jobs_and_accepts_no_more() -> None:
    loop = ManualLoop(ManualClock())
    thread = StepThread(loop)
    seen: list[int | OSError] = []
    thread.submit(lambda: 1, seen.append)
    thread.stop()
    loop.run_until_idle()
    assert seen == [1]
    with pytest.raises(AssertionError, match="stopped"):
        thread.submit(lambda: 2, seen.append)


def test_a_power_cut_in_a_job_leaves_the_driver() -> None:
    thread = StepThread(ManualLoop(ManualClock()))

    def cut() -> None:
        raise PowerCut("now")

    thread.submit(cut, lambda _: None)
    with pytest.raises(PowerCut):
        thread.run_one()
