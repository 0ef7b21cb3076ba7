"""Steps: waits that end at once or later, errors at the yield, and pools of threads."""

from __future__ import annotations

import errno

import pytest

from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop, StepThread
from topicsd.broker.steps import BlockingSteps, Pool, Resume, Steps, on_pool, run, sleep, together


def test_a_hundred_thousand_waits_that_end_at_once_need_no_stack() -> None:
    def count() -> Steps[int]:
        total = 0
        for _ in range(100_000):
            total += yield lambda resume: resume(1)
        return total

    results: list[int | OSError] = []
    run(count(), results.append)
    assert results == [100_000]


def test_an_error_is_raised_at_the_yield_and_may_be_handled_there() -> None:
    def steps() -> Steps[str]:
        try:
            yield lambda resume: resume(OSError(errno.EIO, "lost"))
        except OSError as error:
            return str(error.strerror)
        return "no error"

    def failing() -> Steps[str]:
        yield lambda resume: resume(OSError(errno.EIO, "lost"))
        return "no error"

    results: list[str | OSError] = []
    run(steps(), results.append)
    run(failing(), results.append)
    assert results[0] == "lost"
    assert isinstance(results[1], OSError)


def test_a_bug_is_reported_to_those_that_wait_and_to_the_loop() -> None:
    def steps() -> Steps[None]:
        yield lambda resume: resume(None)
        raise KeyError("bug")

    results: list[OSError | None] = []
    with pytest.raises(KeyError):
        run(steps(), results.append)
    assert isinstance(results[0], OSError)


def test_together_waits_for_the_last_and_keeps_the_order() -> None:
    resumes: list[Resume] = []

    def steps() -> Steps[list[object]]:
        outcomes: list[object] = yield together(
            [resumes.append, lambda resume: resume("now"), resumes.append]
        )
        return outcomes

    results: list[list[object] | OSError] = []
    run(steps(), results.append)
    resumes[1]("second")
    assert not results
    resumes[0]("first")
    assert results == [["first", "now", "second"]]


def test_a_pool_runs_as_many_jobs_as_it_has_threads_and_in_their_order() -> None:
    loop = ManualLoop(ManualClock())
    threads = [StepThread(loop), StepThread(loop)]
    pool = Pool(threads)
    ended: list[object] = []
    for number in range(5):
        pool.call(lambda number=number: number)(ended.append)  # type: ignore[misc]
    assert pool.waiting == 3
    while any(thread.run_one() for thread in threads):
        loop.run_until_idle()
    assert sorted(map(str, ended)) == ["0", "1", "2", "3", "4"]
    assert pool.waiting == 0


def test_blocking_steps_get_results_and_errors_of_a_pool() -> None:
    loop = ManualLoop(ManualClock())
    thread = StepThread(loop)

    def fail() -> None:
        raise OSError(errno.EIO, "lost")

    def job() -> BlockingSteps[str]:
        first: int = yield lambda: 41
        try:
            yield fail
        except OSError:
            first += 1
        return str(first)

    results: list[str | OSError] = []
    run(on_pool(Pool([thread]), job()), results.append)
    while thread.run_one():
        loop.run_until_idle()
    assert results == ["42"]


def test_a_sleep_ends_with_its_time() -> None:
    loop = ManualLoop(ManualClock())
    ended: list[object] = []
    sleep(loop, 2.0)(ended.append)
    loop.advance(1_999)
    assert not ended
    loop.advance(2)
    assert ended == [None]
