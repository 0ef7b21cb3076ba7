"""Queues through the engine: claim, ack, nack, extend, over restarts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NoReturn

import msgspec
import pytest

from shared.contract.topic_config import TopicConfigPatch
from tests.harness.shard.one_shard import OneShard
from topicsd.engine.queue.job import Counts
from topicsd.engine.queue.settle import ack


def queue(jobs: int = 0, **config: object) -> OneShard:
    stage = OneShard()
    stage.put("q", type="queue", **config)
    if jobs:
        stage.append("q", *range(1, jobs + 1))
    return stage


def counts(stage: OneShard, topic: str = "q") -> Counts:
    queue = stage.state(topic).queue
    assert queue is not None
    live = stage.topic(topic).live_count
    assert queue.ready + queue.in_flight + queue.delayed + queue.parked == live
    return queue


def test_jobs_go_out_in_order_to_one_holder_each_and_are_gone_once_acked() -> None:
    stage = queue(3)
    first = stage.claim("q", "a", 2)
    assert [one.seq for one in first.claimed] == [1, 2]
    assert first.ready == 1
    entry = msgspec.json.decode(first.jobs[1])
    assert (entry["$seq"], entry["data"], entry["deliveries"]) == (1, 1, 1)
    assert entry["deadline"] == stage.clock.now_ms() + 30_000
    assert entry["lease_id"] == f"lease_{first.claimed[0].lease:x}"
    assert stage.claimed("q", "b", 5) == [3]
    assert stage.claimed("q", "b", 5) == []
    done = stage.ack("q", "a", 1, 2, 3)
    assert (done.done, done.skipped) == ([1, 2], [3])
    assert counts(stage) == Counts(0, 1, 0, 0, 0)
    assert stage.seqs("q") == [3]


def test_a_lease_that_ran_out_goes_to_another_before_what_is_fresh() -> None:
    stage = queue(3)
    old = stage.claim("q", "a", 1, 1000).claimed[0]
    stage.pass_time(1000)
    assert counts(stage).ready == 3
    new = stage.claim("q", "b").claimed[0]
    assert (new.seq, new.deliveries) == (1, 2)
    assert stage.ack("q", "a", 1, leases=[old.lease]).skipped == [1]
    assert stage.ack("q", "b", 1, leases=[old.lease]).skipped == [1]
    assert stage.ack("q", "b", 1, leases=[new.lease]).done == [1]


def test_a_late_ack_counts_while_no_other_worker_has_the_job() -> None:
    stage = queue(1)
    stage.claim("q", "a", 1, 1000)
    stage.pass_time(5000)
    assert stage.extend("q", "a", 1, ms=500).deadline == stage.clock.now_ms() + 500
    assert counts(stage).in_flight == 1
    stage.pass_time(5000)
    assert stage.ack("q", "a", 1).done == [1]


def test_a_nack_with_a_delay_comes_back_when_it_is_due() -> None:
    stage = queue(2)
    assert stage.claimed("q", "a", 2) == [1, 2]
    assert stage.nack("q", "a", 2, ms=700).counts == Counts(0, 1, 1, 0, 0)
    assert stage.nack("q", "a", 1).counts == Counts(1, 0, 1, 0, 0)
    assert stage.claimed("q", "b", 5) == [1]
    stage.pass_time(700)
    assert stage.claimed("q", "b", 5) == [2]
    assert stage.nack("q", "a", 1, 2).skipped == [1, 2]


def test_a_job_whose_ack_is_in_progress_cannot_be_claimed() -> None:
    stage = queue(1, durable=True)
    stage.claim("q", "a", 1, 1000)
    reply = stage.send_settle(ack, "q", "a", 1)
    assert not reply.has_answer
    stage.clock.advance(2000)
    assert not stage.send_claim("q", "b").answer.claimed
    stage.settle()
    assert reply.answer.done == [1]
    assert counts(stage) == Counts(0, 0, 0, 0, 0)


def test_what_leaves_the_topic_ends_its_leases() -> None:
    stage = queue(6)
    stage.claim("q", "a", 3)
    stage.delete("q", before_seq=3)
    assert counts(stage) == Counts(3, 1, 0, 0, 0)
    stage.put("q", cap_records=2)
    assert counts(stage) == Counts(2, 0, 0, 0, 0)
    assert stage.ack("q", "a", 1, 2, 3).skipped == [1, 2, 3]
    assert stage.claimed("q", "a", 9) == [5, 6]


def test_records_that_are_too_old_end_their_leases() -> None:
    stage = queue(2, ttl_ms=1000)
    stage.claim("q", "a")
    stage.pass_time(2000)
    stage.append("q", 3)
    assert counts(stage) == Counts(1, 0, 0, 0, 0)
    assert stage.claimed("q", "b", 3) == [3]


def test_an_answer_is_bounded_in_bytes_but_has_one_job() -> None:
    stage = OneShard(max_response_bytes=64 << 10)
    stage.append("q", *["x" * 40_000] * 3, config=TopicConfigPatch(type="queue"))
    assert stage.claimed("q", "a", 3) == [1]
    assert stage.claimed("q", "a", 3) == [2]


def test_each_answer_of_a_claim_group_is_bounded_in_bytes_and_has_one_job() -> None:
    stage = OneShard(max_response_bytes=64 << 10)
    config = TopicConfigPatch(type="queue", claim_jitter_ms=50)
    stage.append("q", *["x" * 40_000] * 6, config=config)
    replies = [stage.send_claim("q", "a", 9), stage.send_claim("q", "b", 9)]
    stage.pass_time(50)
    assert [[one.seq for one in each.answer.claimed] for each in replies] == [[1], [2]]


class _Never(OrderedDict[int, None]):
    """A dict that fails when all its entries are visited."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("all entries were visited")


@pytest.mark.parametrize("dead_letter", [None, "dead"])
def test_what_a_claim_parks_costs_nothing_for_what_was_parked_before(dead_letter: str | None) -> None:
    stage = queue(12, max_deliveries=1, dead_letter=dead_letter)
    stage.nack("q", "a", *stage.claimed("q", "a", 10))
    assert stage.claimed("q", "a", 1) == [11]
    assert counts(stage).parked == 10
    state = stage.topic("q").queue
    assert state is not None
    stage.nack("q", "a", 11)
    state.parked = _Never(state.parked)
    assert stage.claimed("q", "a", 1) == [12]
    assert counts(stage).parked == 11
    state.parked = OrderedDict(state.parked.items())
    stage.kill()
    assert counts(stage).parked == 11


def test_leases_that_are_extended_again_and_again_leave_nothing_behind() -> None:
    stage = queue(2)
    stage.claim("q", "a", 2)
    for _ in range(1000):
        stage.clock.advance(1)
        stage.extend("q", "a", 1, 2, ms=86_400_000)
    state = stage.topic("q").queue
    assert state is not None
    assert len(state._due) < 100
    assert state.next_due() == stage.clock.now_ms() + 86_400_000


def test_a_job_delivered_too_often_is_parked_and_not_handed_out() -> None:
    stage = queue(2, max_deliveries=2)
    for _ in range(2):
        assert stage.claimed("q", "a") == [1]
        stage.nack("q", "a", 1)
    assert stage.claimed("q", "a") == [2]
    assert counts(stage) == Counts(0, 1, 0, 1, 0)


ENDS: dict[str, Callable[[OneShard], None]] = {
    "a clean stop": OneShard.restart,
    "a kill": OneShard.kill,
    "a power cut": OneShard.cut_power,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_leases_that_are_kept_hold_over_a_restart(end: Callable[[OneShard], None], checkpoints: bool) -> None:
    stage = queue(4, leases_durable=True, durable=True)
    leases = stage.claim("q", "a", 2, 5000).claimed
    stage.nack("q", "a", 2, ms=9000)
    stage.claim("q", "b", 1, 3000)
    if checkpoints:
        stage.checkpoint()
    stage.extend("q", "b", 3, ms=20_000)
    end(stage)
    assert counts(stage) == Counts(1, 2, 1, 0, 0)
    assert stage.claimed("q", "c", 9) == [4]
    stage.pass_time(5000)
    assert stage.claim("q", "c", 9).claimed[0][::2] == (1, 2)
    assert stage.ack("q", "a", 1, leases=[leases[0].lease]).skipped == [1]
    assert stage.ack("q", "b", 3).done == [3]
    end(stage)
    assert counts(stage) == Counts(0, 2, 1, 0, 0)
    stage.pass_time(4000)
    assert stage.claimed("q", "c", 9) == [2]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_leases_that_are_not_kept_end_with_the_run(end: Callable[[OneShard], None]) -> None:
    stage = queue(3, durable=True)
    stage.claim("q", "a", 1)
    stage.nack("q", "a", 1, reason="no luck")
    stage.claim("q", "a", 2)
    stage.checkpoint()
    end(stage)
    state = stage.topic("q").queue
    assert state is not None
    assert [state.known_jobs[seq].reason for seq in (1, 2)] == ["no luck", ""]
    assert stage.ack("q", "a", 1, 2).skipped == [1, 2]
    claimed = stage.claim("q", "b", 9).claimed
    assert sorted(one[::2] for one in claimed) == [(1, 3), (2, 2), (3, 1)]


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_acked_jobs_never_come_back(end: Callable[[OneShard], None], checkpoints: bool) -> None:
    stage = queue(5, durable=True)
    stage.claim("q", "a", 4)
    stage.ack("q", "a", 2, 4)
    if checkpoints:
        stage.checkpoint()
    stage.ack("q", "a", 1)
    end(stage)
    assert stage.claimed("q", "b", 9) == [3, 5]
    stage.checkpoint()
    stage.ack("q", "b", 3, 5)
    end(stage)
    assert stage.seqs("q") == []


def test_a_parked_job_stays_parked_over_a_kill() -> None:
    stage = queue(1, max_deliveries=1)
    stage.claim("q", "a")
    stage.nack("q", "a", 1)
    assert stage.claimed("q", "a") == []
    stage.kill()
    assert counts(stage) == Counts(0, 0, 0, 1, 0)
    assert stage.claimed("q", "a") == []


def test_claims_of_a_claim_group_are_served_in_turn() -> None:
    stage = queue(5, claim_jitter_ms=50)
    replies = [stage.send_claim("q", "a", 2), stage.send_claim("q", "b", 9)]
    stage.settle()
    assert not any(one.has_answer for one in replies)
    stage.pass_time(50)
    assert [[one.seq for one in each.answer.claimed] for each in replies] == [[1, 3], [2, 4, 5]]


def test_claims_in_progress_are_refused_when_their_queue_is_deleted() -> None:
    stage = queue(5, claim_jitter_ms=50)
    reply = stage.send_claim("q", "a", 2)
    stage.delete_topic("q")
    stage.pass_time(50)
    assert reply.code == "topic_not_found"


def test_jobs_of_a_sealed_segment_are_read_from_it() -> None:
    stage = OneShard(segment_max_events=4)
    stage.put("q", type="queue")
    stage.append("q", *range(1, 11))
    stage.checkpoint()
    stage.restart()
    answer = stage.claim("q", "a", 10)
    assert [msgspec.json.decode(job)["data"] for job in answer.jobs.values()] == list(range(1, 11))
    stage.ack("q", "a", *range(1, 11))
    assert counts(stage) == Counts(0, 0, 0, 0, 0)


def test_claims_that_come_together_read_a_sealed_segment_once_and_what_comes_next_with_it() -> None:
    stage = OneShard(segment_max_events=1000)
    stage.put("q", type="queue")
    stage.append("q", *range(1, 1001))
    stage.checkpoint()
    stage.restart()
    replies = [stage.send_claim("q", "a", 8) for _ in range(20)]
    replies.append(stage.send_claim("q", "a", 500))
    assert stage.copy_thread.run_one()
    stage.loop.run_until_idle()
    assert all(one.has_answer for one in replies)
    assert stage.claimed("q", "a", 8) == [*range(661, 669)]
    assert stage.copy_thread.pending == 0
    numbers = [msgspec.json.decode(job)["data"] for one in replies for job in one.answer.jobs.values()]
    assert numbers == [*range(1, 661)]


def test_a_log_has_no_jobs() -> None:
    stage = OneShard()
    stage.append("log", 1)
    assert stage.send_claim("log", "a").code == "not_a_queue"
    assert stage.send_claim("none", "a").code == "topic_not_found"
    assert stage.state("log").queue is None


def test_an_ephemeral_queue_works_and_is_empty_after_a_restart() -> None:
    stage = queue(3, durability="ephemeral", leases_durable=True, max_deliveries=1)
    stage.claim("q", "a", 2)
    stage.ack("q", "a", 1)
    stage.nack("q", "a", 2)
    assert stage.claimed("q", "a", 9) == [3]
    assert counts(stage) == Counts(0, 1, 0, 1, 0)
    stage.restart()
    assert counts(stage) == Counts(0, 0, 0, 0, 0)
