"""A real thread with a real loop; other tests use `StepThread` instead."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shared.runtime import disk_thread
from shared.runtime.disk_thread import SystemDiskThread


def run(play: Callable[[SystemDiskThread, asyncio.AbstractEventLoop], Any]) -> None:
    """Run a script on a loop with a thread, and stop both."""

    async def on_loop() -> None:
        thread = SystemDiskThread(asyncio.get_running_loop(), "disk-of-a-test")
        try:
            outcome = play(thread, asyncio.get_running_loop())
            if asyncio.iscoroutine(outcome):
                await asyncio.wait_for(outcome, 30)
        finally:
            thread.stop()

    asyncio.run(on_loop())


def submitted(thread: SystemDiskThread, loop: asyncio.AbstractEventLoop, job: Callable[[], Any]) -> Any:
    future = loop.create_future()
    thread.submit(job, future.set_result)
    return future


def test_jobs_run_in_order_and_their_outcomes_arrive_on_the_loop() -> None:
    async def play(thread: SystemDiskThread, loop: asyncio.AbstractEventLoop) -> None:
        done: list[int] = []
        outcomes: list[tuple[int, int]] = []
        last = loop.create_future()
        for number in range(500):
            thread.submit(
                lambda number=number: done.append(number) or number,  # type: ignore[misc]
                lambda outcome: outcomes.append((outcome, threading.get_ident())),
            )
        thread.submit(lambda: None, last.set_result)
        await last
        assert done == list(range(500))
        assert outcomes == [(number, threading.get_ident()) for number in range(500)]

    run(play)


def test_a_job_runs_on_the_named_thread() -> None:
    async def play(thread: SystemDiskThread, loop: asyncio.AbstractEventLoop) -> None:
        assert await submitted(thread, loop, lambda: threading.current_thread().name) == "disk-of-a-test"

    run(play)


def test_the_error_of_a_job_is_its_outcome_and_the_next_job_runs() -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "the disk is gone")

    async def play(thread: SystemDiskThread, loop: asyncio.AbstractEventLoop) -> None:
        outcome = await submitted(thread, loop, fail)
        assert isinstance(outcome, OSError)
        assert outcome.errno == errno.EIO
        assert await submitted(thread, loop, lambda: "next") == "next"

    run(play)


def test_an_unexpected_error_fails_the_job_and_not_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    def raise_key_error() -> None:
        raise KeyError("what")

    async def play(thread: SystemDiskThread, loop: asyncio.AbstractEventLoop) -> None:
        outcome = await submitted(thread, loop, raise_key_error)
        assert isinstance(outcome, OSError)
        assert outcome.errno == errno.EIO
        assert "KeyError('what')" in str(outcome)
        assert await submitted(thread, loop, lambda: "next") == "next"

    with caplog.at_level(logging.ERROR, "topicsd.log"):
        run(play)
    assert "disk thread: job failed" in caplog.text
    assert "KeyError" in caplog.text


def test_drain_waits_for_every_job_and_delivers_outcomes_without_the_loop() -> None:
    def play(thread: SystemDiskThread, loop: asyncio.AbstractEventLoop) -> None:
        gate = threading.Event()
        events: list[str] = []
        thread.submit(gate.wait, lambda outcome: events.append("waited"))
        thread.submit(lambda: "quick", events.append)
        loop.call_soon(events.append, "a turn of the loop")
        gate.set()
        thread.drain()
        assert events == ["waited", "quick"]
        thread.drain()

    run(play)


def test_an_outcome_delivered_by_drain_is_not_delivered_again() -> None:
    async def play(thread: SystemDiskThread, loop: asyncio.AbstractEventLoop) -> None:
        outcomes: list[int] = []
        thread.submit(lambda: 1, outcomes.append)
        thread.drain()
        await submitted(thread, loop, lambda: None)
        assert outcomes == [1]

    run(play)


def test_stop_runs_the_submitted_jobs_first() -> None:
    def play(thread: SystemDiskThread, loop: asyncio.AbstractEventLoop) -> None:
        done: list[int] = []
        for number in range(100):
            thread.submit(lambda number=number: done.append(number), lambda outcome: None)  # type: ignore[misc]
        thread.stop()
        assert done == list(range(100))
        assert not any(one.name == "disk-of-a-test" for one in threading.enumerate())

    run(play)


def test_on_wait_is_called_while_waiting_for_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_thread, "WAIT_SECONDS", 0.001)
    was_called = threading.Event()

    async def on_loop() -> None:
        thread = SystemDiskThread(asyncio.get_running_loop(), "disk-of-a-test", was_called.set)
        outcomes: list[object] = []
        thread.submit(lambda: was_called.wait(30), outcomes.append)
        thread.drain()
        assert outcomes == [True]
        was_called.clear()
        thread.submit(lambda: was_called.wait(30), outcomes.append)
        thread.stop()
        assert was_called.is_set()

    asyncio.run(on_loop())
