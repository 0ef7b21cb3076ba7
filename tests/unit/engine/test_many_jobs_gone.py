"""The records of very many jobs go at once, and the jobs leave their queue a few a turn of the loop."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from topicsd.engine.queue import lease_queue
from topicsd.engine.queue.claim import drain_claims
from topicsd.engine.queue.job import Counts
from topicsd.engine.queue.lease_queue import STEPPED_OVER_MAX
from topicsd.engine.queue.settle import ack
from topicsd.engine.retention import retention

JOBS = 40
AT_ONCE = 3


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_queue, "REMOVED_AT_ONCE", AT_ONCE)


def queue(delay_ms: int | None = None, **config: Any) -> OneShard:
    stage = OneShard()
    stage.put("q", type="queue", **config)
    stage.append("q", *[record(n, tag=f"t{n % 4}") for n in range(JOBS)], delay_ms=delay_ms)
    return stage


def counts(stage: OneShard) -> Counts:
    queue = stage.topic("q").queue
    assert queue is not None
    return queue.counts()


def turns(stage: OneShard, reply: RecordedReply) -> int:
    """How many it takes until the answer is there; in none of them more than a few jobs leave."""
    before = sum(counts(stage)[1:4])
    for number in range(1000):
        if reply.has_answer:
            return number
        stage.loop.run_turn()
        now = sum(counts(stage)[1:4])
        assert before - now <= 2 * AT_ONCE
        assert min(counts(stage)) >= 0
        before = now
    raise AssertionError("no answer came")


def test_delayed_jobs_leave_a_few_a_turn_and_the_answer_comes_when_all_have_left() -> None:
    stage = queue(delay_ms=1000)
    reply = stage.send_delete("q", before_seq=31)
    assert turns(stage, reply) >= 30 // AT_ONCE - 1
    assert (reply.answer.deleted, reply.answer.count) == (30, 10)
    assert counts(stage) == Counts(0, 0, 10, 0, 0)
    stage.pass_time(1000)
    assert stage.claimed("q", "w", 100) == [*range(31, 41)]


def test_readers_miss_all_records_at_once() -> None:
    stage = queue(delay_ms=1000)
    reply = stage.send_delete("q", before_seq=31)
    while stage.seqs("q")[0] == 1:
        stage.loop.run_turn()
    assert stage.seqs("q") == [*range(31, 41)]
    assert stage.state("q").count == 10
    assert not reply.has_answer


@pytest.mark.parametrize("order_by", ["seq", "tag"])
@pytest.mark.parametrize("jitter_ms", [0, 5])
def test_a_claim_waits_and_gets_nothing_that_is_gone(order_by: str, jitter_ms: int) -> None:
    stage = queue(order_by=order_by, claim_jitter_ms=jitter_ms)
    stage.pass_time(100)
    reply = stage.send_claim("q", "w", 100)
    stage.pass_time(100)
    stage.nack("q", "w", *[one.seq for one in reply.answer.claimed])
    stage.send_delete("q", before_seq=31)
    while stage.seqs("q")[0] == 1:
        stage.loop.run_turn()
    reply = stage.send_claim("q", "w", 100)
    assert not reply.has_answer
    stage.pass_time(10)
    expected = [*range(31, 35)] if order_by == "tag" else [*range(31, 41)]
    assert [one.seq for one in reply.answer.claimed] == expected


def test_what_is_gone_cannot_be_acked_while_it_leaves_and_what_is_not_can() -> None:
    stage = queue()
    stage.claim("q", "w", 100)
    stage.send_delete("q", before_seq=31)
    while stage.seqs("q")[0] == 1:
        stage.loop.run_turn()
    reply = stage.send_settle(ack, "q", "w", 30, 31)
    stage.settle()
    assert (reply.answer.done, reply.answer.skipped) == ([31], [30])
    assert counts(stage) == Counts(0, 9, 0, 0, 0)
    assert stage.shard.state.totals.leases_in_flight == 9


def steps_of_removal(stage: OneShard, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Truncate the queue after its tenth job; return what each step of the removal of its jobs said."""
    monkeypatch.setattr(retention, "EACH_MAX", AT_ONCE)
    steps: list[bool] = []
    step = lease_queue.LeaseQueue.remove_some

    def remove_some(queue: lease_queue.LeaseQueue) -> bool:
        steps.append(step(queue))
        return steps[-1]

    monkeypatch.setattr(lease_queue.LeaseQueue, "remove_some", remove_some)
    assert stage.delete("q", after_seq=10).deleted == JOBS - 10
    return steps


def test_a_truncation_of_fresh_jobs_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = queue()
    assert steps_of_removal(stage, monkeypatch) == []
    assert counts(stage) == Counts(10, 0, 0, 0, 0)
    assert stage.claimed("q", "w", 100) == [*range(1, 11)]


def test_a_truncation_takes_as_long_as_there_are_known_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = queue()
    stage.claim("q", "w", 15)
    assert len(steps_of_removal(stage, monkeypatch)) == 15 // AT_ONCE + 1
    assert [*jobs(stage)] == [*range(1, 11)]
    assert counts(stage) == Counts(0, 10, 0, 0, 0)


@pytest.mark.parametrize("config", [{"order_by": "tag"}, {"fair_by": "tag"}])
def test_a_truncation_takes_the_tags_of_fresh_jobs(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    stage = queue(**config)
    assert len(steps_of_removal(stage, monkeypatch)) == (JOBS - 10) // AT_ONCE + 1
    claimed: list[int] = []
    while seqs := stage.claimed("q", "w", 100):
        claimed += seqs
        stage.send_settle(ack, "q", "w", *seqs)
        stage.settle()
    assert sorted(claimed) == [*range(1, 11)]


@pytest.mark.parametrize("lost", ["cap", "ttl"])
def test_what_a_cap_or_its_age_takes_leaves_a_few_a_turn_too(lost: str) -> None:
    stage = queue(delay_ms=3_600_000)
    before = len(jobs(stage))
    if lost == "cap":
        stage.send_put("q", cap_records=1)
    else:
        stage.put("q", ttl_ms=100)
        stage.clock.advance_ns(200_000_000)
        stage.state("q")
    least = before
    while len(jobs(stage)) > (1 if lost == "cap" else 0):
        stage.turn()
        assert least - len(jobs(stage)) <= 2 * AT_ONCE
        least = len(jobs(stage))


def jobs(stage: OneShard) -> dict[int, Any]:
    queue = stage.topic("q").queue
    assert queue is not None
    return dict(queue.known_jobs)


def test_a_shard_that_ends_keeps_no_claim_waiting() -> None:
    stage = queue()
    stage.claim("q", "w", 30)
    stage.send_delete("q", before_seq=31)
    while stage.seqs("q")[0] == 1:
        stage.loop.run_turn()
    reply = stage.send_claim("q", "w", 100)
    drain_claims(stage.shard.state)
    assert [one.seq for one in reply.answer.claimed] == [*range(31, 41)]


def test_deleting_the_topic_ends_all_waits_and_counts_no_lease_twice() -> None:
    stage = queue()
    stage.claim("q", "w", 100)
    reply = stage.send_delete("q", before_seq=31)
    while stage.seqs("q")[0] == 1:
        stage.loop.run_turn()
    claim = stage.send_claim("q", "w", 100)
    gone = stage.send_delete_topic("q")
    stage.settle()
    assert gone.answer.deleted
    assert reply.answer.deleted == 30
    assert claim.code == "topic_not_found" or not claim.answer.claimed
    assert stage.shard.state.totals.leases_in_flight == 0


def test_a_start_finds_the_same_whenever_it_was_killed() -> None:
    for turn in range(25):
        stage = queue(leases_durable=True)
        stage.claim("q", "w", 35, 3_600_000)
        stage.send_delete("q", before_seq=31)
        for _ in range(turn):
            stage.turn()
        is_logged = stage.topic("q").earliest_seq > 1
        stage.kill()
        assert stage.seqs("q")[0] in ((31,) if is_logged else (1, 31))
        left = JOBS + 1 - stage.seqs("q")[0]
        assert counts(stage) == Counts(5, left - 5, 0, 0, 0)


def test_deadlines_that_count_no_more_are_stepped_over_a_bounded_number_at_a_time() -> None:
    stage = queue()
    state = stage.topic("q").queue
    assert state is not None
    # These removals did not check the deadlines.
    count = 3 * STEPPED_OVER_MAX
    for number in range(count):
        state._due.push((1, 10_000 + number))
    for left in range(3, 0, -1):
        assert len(state._due) == left * STEPPED_OVER_MAX
        assert not state.collect(5)
    assert state.next_due() is None
