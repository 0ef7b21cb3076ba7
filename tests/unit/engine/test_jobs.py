"""A job advances when its wait ends, and stops at the requested step."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from shared.contract.errors import STORAGE_FAILED, STORAGE_FULL, Refusal
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.manual_loop import ManualLoop, StepThread
from topicsd.engine.jobs import SYNCED, Background, BackgroundJob, Backlog, operation, together
from topicsd.log.batch import CommitEntry


class ManualLog:
    """A log whose syncs come when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[CommitEntry] = []
        self.flush_count = 0
        self.failed: Refusal | None = None

    def publish_after_sync(self, entry: CommitEntry) -> None:
        self.waiting.append(entry)

    def flush(self) -> None:
        self.flush_count += 1


class Runner:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.loop = ManualLoop(self.clock)
        self.thread = StepThread(self.loop)
        self.log = ManualLog()
        self.background = Background(self.loop, self.thread, self.log)
        self.outcomes: list[Any] = []

    def start(self, job: BackgroundJob[Any]) -> None:
        self.background.start(job, self.outcomes.append)

    def settle(self) -> None:
        self.loop.run_until_idle()
        while self.thread.run_one():
            self.loop.run_until_idle()


def _fail(number: int = errno.EIO) -> Callable[[], None]:
    def work() -> None:
        raise OSError(number, "the disk says no")

    return work


def test_a_job_gets_the_result_of_the_thread_and_reports_its_own() -> None:
    def job() -> BackgroundJob[int]:
        yield None
        result = yield lambda: 20
        return int(result) + 1

    runner = Runner()
    runner.start(job())
    assert not runner.outcomes
    runner.settle()
    assert runner.outcomes == [21]


def test_a_disk_error_is_raised_where_it_was_asked_for_and_the_job_may_live_on() -> None:
    def job() -> BackgroundJob[str]:
        try:
            yield _fail()
        except OSError as error:
            yield lambda: None
            return f"lived on: {error.strerror}"
        return "never"

    runner = Runner()
    runner.start(job())
    runner.settle()
    assert runner.outcomes == ["lived on: the disk says no"]
    assert runner.background.run_now(job()) == "lived on: the disk says no"


def test_what_a_job_does_not_catch_is_its_outcome() -> None:
    def job() -> BackgroundJob[None]:
        yield _fail(errno.ENOSPC)

    runner = Runner()
    runner.start(job())
    runner.settle()
    assert runner.outcomes[0].errno == errno.ENOSPC
    with pytest.raises(OSError, match="the disk says no"):
        runner.background.run_now(job())


def test_a_job_that_waits_for_a_sync_resumes_in_a_turn_after_the_publish() -> None:
    went_on = []

    def job() -> BackgroundJob[None]:
        yield SYNCED
        went_on.append(True)

    runner = Runner()
    runner.start(job())
    runner.loop.run_until_idle()
    runner.log.waiting[0].publish()
    assert not went_on
    runner.loop.run_until_idle()
    assert went_on == [True]
    runner.background.run_now(job())
    assert runner.log.flush_count == 1


def test_a_log_that_takes_nothing_ends_the_wait_with_an_error() -> None:
    def job() -> BackgroundJob[None]:
        yield SYNCED

    runner = Runner()
    runner.start(job())
    runner.loop.run_until_idle()
    runner.log.waiting[0].undo()
    runner.log.waiting[0].refuse(Refusal(STORAGE_FAILED, "it is over"))
    runner.loop.run_until_idle()
    assert "it is over" in str(runner.outcomes[0])


def test_a_stopped_job_cleans_up_behind_what_the_thread_had_begun_and_gives_it_nothing_more() -> None:
    done: list[str] = []

    def job() -> BackgroundJob[None]:
        try:
            yield lambda: done.append("begun")
            yield lambda: done.append("one more")
        finally:
            done.append("cleaned up")

    runner = Runner()
    runner.start(job())
    runner.loop.run_until_idle()
    assert runner.thread.pending == 1
    runner.background.stop()
    assert done == ["begun", "cleaned up"]
    assert runner.thread.pending == 0
    runner.settle()
    assert done == ["begun", "cleaned up"]
    assert not runner.outcomes


@pytest.mark.parametrize("wait", [None, SYNCED])
def test_a_job_that_is_stopped_while_it_waits_is_not_woken_again(wait: Any) -> None:
    def job() -> BackgroundJob[None]:
        yield wait
        raise AssertionError("it went on")

    runner = Runner()
    runner.start(job())
    runner.loop.run_turn()
    runner.background.stop()
    for entry in runner.log.waiting:
        entry.publish()
    runner.settle()
    assert not runner.outcomes


def test_a_job_that_holds_the_loop_does_not_resume_after_a_failed_sync() -> None:
    went_on = []

    def job() -> BackgroundJob[None]:
        yield SYNCED
        went_on.append(True)

    runner = Runner()
    runner.log.failed = Refusal(STORAGE_FAILED, "it is over")
    with pytest.raises(OSError, match="it is over"):
        runner.background.run_now(job())
    assert not went_on


@pytest.mark.parametrize(("code", "number"), [(STORAGE_FULL, errno.ENOSPC), (STORAGE_FAILED, errno.EIO)])
def test_a_job_learns_why_the_log_takes_nothing(code: str, number: int) -> None:
    def job() -> BackgroundJob[None]:
        yield SYNCED

    runner = Runner()
    runner.start(job())
    runner.settle()
    runner.log.waiting[0].refuse(Refusal(code, "no"))
    runner.settle()
    assert [outcome.errno for outcome in runner.outcomes] == [number]


def test_an_operation_sends_back_what_its_reply_receives_at_once_or_later() -> None:
    replies: list[Callable[[int], object]] = []

    def job() -> BackgroundJob[list[int]]:
        first = yield from operation(lambda reply: reply(1))
        second = yield from operation(replies.append)
        return [first, second]

    runner = Runner()
    runner.start(job())
    runner.settle()
    assert not runner.outcomes
    replies[0](2)
    assert runner.outcomes == [[1, 2]]


def test_thousands_of_operations_that_reply_at_once_do_not_nest() -> None:
    def job() -> BackgroundJob[int]:
        total = 0
        for number in range(5000):
            total += yield from operation(lambda reply, number=number: reply(number))
        return total

    runner = Runner()
    runner.start(job())
    runner.settle()
    assert runner.outcomes == [sum(range(5000))]


def test_operations_together_answer_in_their_order_whichever_replies_first() -> None:
    replies: dict[str, Callable[[str], object]] = {}

    def begin(name: str, reply: Callable[[str], object]) -> None:
        replies[name] = reply

    def job() -> BackgroundJob[list[str]]:
        nothing: list[str] = yield from together([])
        assert nothing == []
        return (yield from together([partial(begin, "a"), lambda reply: reply("b!"), partial(begin, "c")]))

    runner = Runner()
    runner.start(job())
    runner.settle()
    replies["c"]("c!")
    assert not runner.outcomes
    replies["a"]("a!")
    assert runner.outcomes == [["a!", "b!", "c!"]]


def test_an_operation_that_cannot_start_raises_in_the_job() -> None:
    def fail(reply: Callable[[None], object]) -> None:
        raise ValueError("broken")

    def job() -> BackgroundJob[str]:
        try:
            yield from operation(fail)
        except ValueError as error:
            return f"caught: {error}"
        return "never"

    runner = Runner()
    runner.start(job())
    runner.settle()
    assert runner.outcomes == ["caught: broken"]


def test_an_error_that_one_of_several_operations_replies_is_raised_after_all_have_replied() -> None:
    replies: list[Callable[[object], object]] = []

    def job() -> BackgroundJob[str]:
        try:
            yield from together([replies.append, replies.append])
        except ValueError as error:
            return f"caught: {error}"
        return "never"

    runner = Runner()
    runner.start(job())
    runner.settle()
    replies[0](ValueError("broken"))
    assert not runner.outcomes
    replies[1]("in order")
    assert runner.outcomes == ["caught: broken"]


def test_a_job_that_is_started_now_runs_its_first_step_at_once_unless_jobs_have_stopped() -> None:
    steps: list[str] = []

    def job() -> BackgroundJob[None]:
        steps.append("first")
        yield None
        steps.append("second")

    runner = Runner()
    runner.background.start_now(job(), runner.outcomes.append)
    assert steps == ["first"]
    runner.settle()
    assert (steps, runner.outcomes) == (["first", "second"], [None])
    runner.background.stop()
    runner.background.start_now(job(), runner.outcomes.append)
    assert steps == ["first", "second"]


def test_a_reply_after_the_stop_is_ignored() -> None:
    replies: list[Callable[[int], object]] = []

    def job() -> BackgroundJob[None]:
        yield from operation(replies.append)
        raise AssertionError("the job resumed after the stop")

    runner = Runner()
    runner.start(job())
    runner.settle()
    runner.background.stop()
    replies[0](1)
    assert not runner.outcomes


def test_a_job_takes_each_value_of_a_backlog_once_in_order() -> None:
    backlog: Backlog[str] = Backlog()
    taken: list[str] = []

    def job() -> BackgroundJob[None]:
        while True:
            taken.append((yield from operation(backlog.take)))
            yield None

    runner = Runner()
    for value in "aba":
        backlog.add(value)
    runner.start(job())
    runner.settle()
    assert taken == ["a", "b"]
    for value in "ccdc":  # The job takes the first one at once.
        backlog.add(value)
    runner.settle()
    assert taken == ["a", "b", "c", "c", "d"]
    assert runner.outcomes == []
