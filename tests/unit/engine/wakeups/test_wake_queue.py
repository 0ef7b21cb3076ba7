from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop
from topicsd.engine.wakeups.wake_queue import SLICE_SECONDS, Waiters, WakeQueue


class Changing:
    """Something that is awaited, and is no topic."""

    def __init__(self, base: float = 0.0) -> None:
        self.base = base
        self.waiters: Waiters | None = None

    def base_priority(self, now_ms: int) -> float:
        return self.base


class Bench:
    """A watch whose waiters write down that they were called; each call takes so long."""

    def __init__(self, call_ms: float = 0.0) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.wake_queue = WakeQueue(self.loop, self.clock)
        self.call_ms = call_ms
        self.called: list[str] = []

    def waiter(self, name: str, then: Callable[[], object] | None = None) -> Callable[[], None]:
        def call() -> None:
            self.called.append(name)
            self.clock.advance(self.call_ms)
            if then is not None:
                then()

        return call

    def add(self, awaited: Changing, *names: str) -> None:
        for name in names:
            self.wake_queue.add(awaited, self.waiter(name))

    def turn(self) -> list[str]:
        """What one turn of the loop calls."""
        self.loop.run_turn()
        called, self.called = self.called, []
        return called

    def settle(self) -> list[str]:
        self.loop.run_until_idle()
        called, self.called = self.called, []
        return called


def test_a_waiter_is_called_at_the_end_of_the_turn_and_once() -> None:
    bench, topic = Bench(), Changing()
    bench.add(topic, "a", "b")
    bench.wake_queue.wake(topic)
    bench.wake_queue.wake(topic)
    assert bench.called == []
    assert bench.turn() == ["a", "b"]
    assert topic.waiters is None
    bench.wake_queue.wake(topic)
    assert bench.settle() == []


def test_a_waiter_that_registers_again_is_called_for_the_next_change_only() -> None:
    bench, topic = Bench(), Changing()
    again = bench.waiter("again", lambda: bench.wake_queue.add(topic, again))
    bench.wake_queue.add(topic, again)
    for _ in range(3):
        bench.wake_queue.wake(topic)
        assert bench.settle() == ["again"]


def test_what_a_waiter_changes_is_served_in_the_next_turn() -> None:
    bench, topic, other = Bench(), Changing(), Changing()
    bench.wake_queue.add(topic, bench.waiter("first", lambda: bench.wake_queue.wake(other)))
    bench.add(other, "second")
    bench.wake_queue.wake(topic)
    assert bench.turn() == ["first"]
    assert bench.turn() == ["second"]


def test_a_waiter_that_left_is_not_called_even_on_its_turn() -> None:
    bench, topic = Bench(), Changing()
    second = bench.waiter("second")
    bench.wake_queue.add(topic, bench.waiter("first", lambda: bench.wake_queue.remove(topic, second)))
    bench.wake_queue.add(topic, second)
    bench.add(topic, "third")
    bench.wake_queue.wake(topic)
    assert bench.settle() == ["first", "third"]
    assert not bench.wake_queue.remove(topic, second)
    bench.wake_queue.add(topic, second)
    assert bench.wake_queue.remove(topic, second)
    assert topic.waiters is None


def test_one_that_leaves_is_not_looked_for_among_the_others() -> None:
    compared = 0

    class Counting:
        def __init__(self, number: int) -> None:
            self.number = number

        def __hash__(self) -> int:
            return self.number

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return self is other

        def __call__(self) -> None:
            pass

    bench, topic = Bench(), Changing()
    waiters = [Counting(number) for number in range(10_000)]
    for waiter in waiters:
        bench.wake_queue.add(topic, waiter)
    for waiter in waiters[::-1]:
        assert bench.wake_queue.remove(topic, waiter)
    assert compared <= len(waiters)


def test_a_failing_waiter_leaves_no_other_waiting(caplog: pytest.LogCaptureFixture) -> None:
    bench, topic, other = Bench(), Changing(1.0), Changing()

    def fail() -> None:
        raise RuntimeError("a mistake")

    bench.wake_queue.add(topic, fail)
    bench.add(topic, "a")
    bench.add(other, "b")
    bench.wake_queue.wake(topic)
    bench.wake_queue.wake(other)
    with caplog.at_level(logging.ERROR):
        assert bench.settle() == ["a", "b"]
    assert "wake queue: a waiter raised an exception" in caplog.text


def test_the_highest_priority_of_a_turn_comes_first() -> None:
    bench = Bench()
    bases = {"low": -5.0, "top": 900.0, "none": 0.0, "high": 600.0}
    for name, base in bases.items():
        awaited = Changing(base)
        bench.add(awaited, name)
        bench.wake_queue.wake(awaited)
    assert bench.turn() == ["top", "high", "none", "low"]


def test_ten_thousand_waiters_of_one_do_not_hold_the_loop() -> None:
    bench, topic, other = Bench(call_ms=0.01), Changing(), Changing(900.0)
    bench.add(topic, *(str(number) for number in range(10_000)))
    bench.wake_queue.wake(topic)
    turns = []
    for turn in range(200):
        started = bench.clock.monotonic()
        turns.append(bench.turn())
        assert bench.clock.monotonic() - started <= SLICE_SECONDS + 0.00002
        if turn == 10:
            # What is worth more goes in between, before the others are through.
            bench.add(other, "other")
            bench.wake_queue.wake(other)
        if not bench.loop.ready_count:
            break
    called = [name for names in turns for name in names]
    assert "other" in turns[11]
    called.remove("other")
    assert called == [str(number) for number in range(10_000)]
    assert 90 <= len(turns) <= 110


def test_a_change_during_a_round_calls_new_waiters_and_none_twice() -> None:
    bench, topic = Bench(call_ms=0.5), Changing()
    for number in range(6):
        again = bench.waiter(str(number), lambda number=number: bench.add(topic, f"{number} again"))
        bench.wake_queue.add(topic, again)
    bench.wake_queue.wake(topic)
    assert bench.turn() == ["0", "1"]
    bench.wake_queue.wake(topic)
    assert bench.settle() == ["2", "3", "4", "5", "0 again", "1 again"]
    assert topic.waiters is not None
    # They came behind the last change.
    assert len(topic.waiters) == 4


def test_waiters_that_come_again_and_again_do_not_keep_it_going() -> None:
    bench, topic = Bench(call_ms=0.3), Changing()

    def make(number: int) -> Callable[[], None]:
        def call() -> None:
            bench.clock.advance(0.3)
            bench.called.append(str(number))
            bench.wake_queue.add(topic, call)

        return call

    for number in range(20):
        bench.wake_queue.add(topic, make(number))
    bench.wake_queue.wake(topic)
    assert sorted(bench.settle(), key=int) == [str(number) for number in range(20)]


def test_what_is_too_much_for_a_turn_is_served_by_weight() -> None:
    bench = Bench(call_ms=SLICE_SECONDS * 1000)
    for number in range(20):
        for name, base in (("top", 900.0), ("low", -5.0)):
            awaited = Changing(base)
            bench.add(awaited, f"{name}{number}")
            bench.wake_queue.wake(awaited)
    called = bench.settle()
    assert len(called) == 40
    assert [name[:3] for name in called[:20]].count("low") == 2


def test_under_pressure_changes_are_gathered_and_served_together() -> None:
    bench, first, second = Bench(), Changing(), Changing()
    bench.wake_queue.apply_pressure(0.01, is_paused=False)
    bench.add(first, "first")
    bench.add(second, "second")
    bench.wake_queue.wake(first)
    bench.loop.advance(6)
    bench.wake_queue.wake(second)
    bench.wake_queue.wake(first)
    assert bench.called == []
    bench.loop.advance(4.5)
    assert bench.called == ["first", "second"]
    bench.called.clear()
    bench.add(first, "later")
    bench.wake_queue.wake(first)
    bench.loop.advance(8)
    assert bench.called == []
    bench.loop.advance(2)
    assert bench.called == ["later"]
    bench.called.clear()
    bench.wake_queue.apply_pressure(0.0, is_paused=False)
    bench.add(first, "at once")
    bench.wake_queue.wake(first)
    assert bench.turn() == ["at once"]


def test_what_is_gathered_waits_also_while_others_take_their_turns() -> None:
    bench, busy, hot = Bench(call_ms=1.0), Changing(), Changing(900.0)
    bench.add(busy, *(str(number) for number in range(40)))
    bench.wake_queue.wake(busy)
    assert bench.turn() == ["0"]
    bench.wake_queue.apply_pressure(0.02, is_paused=False)
    bench.add(hot, "hot")
    bench.wake_queue.wake(hot)
    called = bench.settle()
    assert 18 <= called.index("hot") <= 21
    assert len(called) == 40


def test_a_pause_holds_what_is_negative_and_lets_go_of_it() -> None:
    bench, low, other = Bench(), Changing(-10.0), Changing()
    bench.wake_queue.apply_pressure(0.0, is_paused=True)
    bench.add(low, "low")
    bench.add(other, "other")
    bench.wake_queue.wake(low)
    bench.wake_queue.wake(other)
    assert bench.settle() == ["other"]
    bench.add(low, "low too")
    bench.wake_queue.wake(low)
    assert bench.settle() == []
    assert bench.wake_queue.ready.held_count == 1
    bench.wake_queue.apply_pressure(0.0, is_paused=False)
    assert bench.settle() == ["low", "low too"]


def test_a_pause_ends_for_each_after_ten_seconds() -> None:
    bench, low = Bench(), Changing(-10.0)
    bench.wake_queue.apply_pressure(0.0, is_paused=True)
    bench.add(low, "low")
    bench.wake_queue.wake(low)
    for _ in range(99):
        bench.loop.advance(100)
        bench.wake_queue.apply_pressure(0.0, is_paused=True)
    assert bench.called == []
    bench.loop.advance(150)
    bench.wake_queue.apply_pressure(0.0, is_paused=True)
    assert bench.settle() == ["low"]


def test_the_time_from_a_change_to_its_turn_is_counted_once_for_each() -> None:
    bench, topic = Bench(call_ms=2.0), Changing()
    bench.add(topic, "a", "b", "c")
    bench.wake_queue.wake(topic)
    bench.clock.advance(0.1)
    bench.settle()
    assert bench.wake_queue.latency_us.count == 1
    assert 99 <= bench.wake_queue.latency_us.total <= 101
    other = Changing()
    bench.add(topic, "d")
    bench.add(other, "e")
    bench.wake_queue.wake(topic)
    bench.wake_queue.wake(other)
    bench.settle()
    assert bench.wake_queue.latency_us.count == 3


def test_what_waits_is_worth_more_each_second() -> None:
    bench, low = Bench(), Changing(-500.0)
    assert bench.wake_queue.effective_priority(low) == -500
    bench.wake_queue.apply_pressure(0.0, is_paused=True)
    bench.wake_queue.wake(low)
    bench.settle()
    bench.clock.advance(3000)
    assert bench.wake_queue.effective_priority(low) == -200
