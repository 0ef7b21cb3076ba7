"""A real thread under a real loop: the rest of the suite puts `StepThread` in its place."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from shared.runtime import disk_thread as sync_thread
from shared.runtime.disk_thread import SyncThread


def run(play: Callable[[SyncThread, asyncio.AbstractEventLoop], Any]) -> None:
    """Play a script on a loop with a thread, and end both."""

    async def on_loop() -> None:
        thread = SyncThread(asyncio.get_running_loop(), "disk-of-a-test")
        try:
            outcome = play(thread, asyncio.get_running_loop())
            if asyncio.iscoroutine(outcome):
                await asyncio.wait_for(outcome, 30)
        finally:
            thread.stop()

    asyncio.run(on_loop())


def submitted(thread: SyncThread, loop: asyncio.AbstractEventLoop, job: Callable[[], Any]) -> Any:
    future = loop.create_future()
    thread.submit(job, future.set_result)
    return future


def test_jobs_are_done_one_by_one_in_their_order_and_told_on_the_loop() -> None:
    async def play(thread: SyncThread, loop: asyncio.AbstractEventLoop) -> None:
        done: list[int] = []
        told: list[tuple[int, int]] = []
        last = loop.create_future()
        for number in range(500):
            thread.submit(
                lambda number=number: done.append(number) or number,  # type: ignore[misc]
                lambda outcome: told.append((outcome, threading.get_ident())),
            )
        thread.submit(lambda: None, last.set_result)
        await last
        assert done == list(range(500))
        assert told == [(number, threading.get_ident()) for number in range(500)]

    run(play)


def test_a_job_runs_on_a_thread_of_its_own_name() -> None:
    async def play(thread: SyncThread, loop: asyncio.AbstractEventLoop) -> None:
        assert await submitted(thread, loop, lambda: threading.current_thread().name) == "disk-of-a-test"

    run(play)


def test_the_error_of_a_job_is_its_outcome_and_the_next_job_is_done() -> None:
    def fail() -> None:
        raise OSError(errno.EIO, "the disk is gone")

    async def play(thread: SyncThread, loop: asyncio.AbstractEventLoop) -> None:
        outcome = await submitted(thread, loop, fail)
        assert isinstance(outcome, OSError)
        assert outcome.errno == errno.EIO
        assert await submitted(thread, loop, lambda: "next") == "next"

    run(play)


def test_our_own_mistake_in_a_job_fails_it_and_not_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    def mistake() -> None:
        raise KeyError("what")

    async def play(thread: SyncThread, loop: asyncio.AbstractEventLoop) -> None:
        outcome = await submitted(thread, loop, mistake)
        assert isinstance(outcome, OSError)
        assert outcome.errno == errno.EIO
        assert "KeyError('what')" in str(outcome)
        assert await submitted(thread, loop, lambda: "next") == "next"

    with caplog.at_level(logging.ERROR, "topicsd.log"):
        run(play)
    assert "a disk job failed" in caplog.text
    assert "KeyError" in caplog.text


def test_draining_waits_for_every_job_and_tells_it_without_a_turn_of_the_loop() -> None:
    def play(thread: SyncThread, loop: asyncio.AbstractEventLoop) -> None:
        gate = threading.Event()
        told: list[str] = []
        thread.submit(gate.wait, lambda outcome: told.append("waited"))
        thread.submit(lambda: "quick", told.append)
        loop.call_soon(told.append, "a turn of the loop")
        gate.set()
        thread.drain()
        assert told == ["waited", "quick"]
        thread.drain()

    run(play)


def test_an_outcome_that_a_drain_told_is_not_told_again_by_the_loop() -> None:
    async def play(thread: SyncThread, loop: asyncio.AbstractEventLoop) -> None:
        told: list[int] = []
        thread.submit(lambda: 1, told.append)
        thread.drain()
        await submitted(thread, loop, lambda: None)
        assert told == [1]

    run(play)


def test_stopping_does_what_was_submitted_first() -> None:
    def play(thread: SyncThread, loop: asyncio.AbstractEventLoop) -> None:
        done: list[int] = []
        for number in range(100):
            thread.submit(lambda number=number: done.append(number), lambda outcome: None)  # type: ignore[misc]
        thread.stop()
        assert done == list(range(100))
        assert not any(one.name == "disk-of-a-test" for one in threading.enumerate())

    run(play)


def test_waiting_for_the_thread_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_thread, "WAIT_SECONDS", 0.001)
    has_beaten = threading.Event()

    async def on_loop() -> None:
        thread = SyncThread(asyncio.get_running_loop(), "disk-of-a-test", has_beaten.set)
        outcomes: list[object] = []
        thread.submit(lambda: has_beaten.wait(30), outcomes.append)
        thread.drain()
        assert outcomes == [True]
        has_beaten.clear()
        thread.submit(lambda: has_beaten.wait(30), outcomes.append)
        thread.stop()
        assert has_beaten.is_set()

    asyncio.run(on_loop())
