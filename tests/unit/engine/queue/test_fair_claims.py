"""Fair claims and priorities: which of the ready jobs is claimed next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.queue.explain import explain
from topicsd.engine.queue.order.fair_tags import FairTags
from topicsd.engine.queue.order.lazy_heap import STALE_MAX

End = Callable[[OneShard], object]
ENDS: list[End] = [
    lambda one: None,
    OneShard.kill,
    OneShard.restart,
    lambda one: (one.checkpoint(), one.cut_power()),
]
END_NAMES = ["running", "killed", "restarted", "power cut"]


def queue(*tags: str | None, **config: object) -> OneShard:
    one = OneShard()
    one.put("q", type="queue", **config)
    if tags:
        one.append("q", *[record(tag=tag) for tag in tags])
    return one


def prioritized(*priorities: int | None, **config: object) -> OneShard:
    one = queue(**config)
    for priority in priorities:
        one.append("q", record(tag="x"), priority=priority)
    return one


# -- fair claims -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ENDS, ids=END_NAMES)
def test_tags_take_turns_however_many_jobs_one_has(end: End) -> None:
    one = queue(*"aaaaaabbc", None, None, fair_by="tag")
    end(one)
    assert one.claimed("q", "w", 8) == [1, 7, 9, 10, 2, 8, 11, 3]
    assert one.claimed("q", "w", 8) == [4, 5, 6]


@pytest.mark.parametrize("end", ENDS, ids=END_NAMES)
def test_a_tag_with_fewer_jobs_in_flight_is_next(end: End) -> None:
    one = queue(*"aaaaaa", fair_by="tag", leases_durable=True)
    assert one.claimed("q", "w", 3) == [1, 2, 3]
    one.append("q", *[record(tag="b") for _ in range(5)])
    end(one)
    assert one.claimed("q", "w", 3) == [7, 8, 9]
    one.ack("q", "w", 1, 2)
    assert one.claimed("q", "w", 2) == [4, 5]


def test_one_claim_after_the_other_serves_every_tag_in_turn() -> None:
    one = queue(*"aaaabc", fair_by="tag")
    seqs = []
    while got := one.claimed("q", "w"):
        seqs += got
        one.ack("q", "w", *got)
    assert seqs == [1, 5, 6, 2, 3, 4]


def test_returned_and_expired_jobs_come_before_the_later_ones_of_their_tag() -> None:
    one = queue(*"aaabb", fair_by="tag")
    assert one.claimed("q", "w", 4, 1000) == [1, 4, 2, 5]
    one.nack("q", "w", 2)
    assert one.claimed("q", "w", 1) == [2]
    one.pass_time(1000)
    assert one.claimed("q", "w", 9) == [4, 1, 5, 3]


def test_one_job_of_a_tag_at_a_time_is_fair_too() -> None:
    one = queue(*"aaabbc", None, fair_by="tag", order_by="tag")
    seqs = []
    while got := one.claimed("q", "w", 2):
        seqs.append(got)
        one.ack("q", "w", *got)
    assert seqs == [[1, 4], [6, 7], [2, 5], [3]]


def test_removed_jobs_leave_nothing_of_their_tags() -> None:
    one = queue(*"aabbcc", fair_by="tag")
    one.claim("q", "w", 3)
    one.delete("q", tag="a")
    one.ack("q", "w", 3)
    one.delete("q", before_seq=6)
    assert one.claimed("q", "w", 9) == [6]
    one.ack("q", "w", 6)
    state = one.topic("q").queue
    assert state is not None
    fair = state._ready.fair
    assert fair is not None
    assert not fair._tags
    assert not fair._tag_of
    one.append("q", record(tag="a"))
    assert one.claimed("q", "w", 9) == [7]


def test_a_fair_queue_keeps_its_order_with_many_tags_and_over_segments() -> None:
    one = OneShard(segment_max_events=4)
    one.put("q", type="queue", fair_by="tag")
    for _ in range(3):
        one.append("q", *[record(tag=f"t{number}") for number in range(10)])
    one.checkpoint()
    one.restart()
    tags = Counter((seq - 1) % 10 for seq in one.claimed("q", "w", 20))
    assert set(tags.values()) == {2}
    assert one.state("q").oldest_ready_ms == 0
    one.pass_time(500)
    assert one.state("q").oldest_ready_ms >= 500


def test_entries_of_tags_do_not_pile_up() -> None:
    tags = FairTags(lambda seq: True)
    for seq in range(100):
        tags.add(seq + 1, b"%d" % (seq % 10))
        tags.push(seq + 1, 0)
    for _ in range(1000):
        seq = tags.first()
        tags.change_in_flight(seq, 1)
        tags.change_in_flight(seq, -1)
    assert len(tags._ready_tags) < 200


# -- priorities --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ENDS, ids=END_NAMES)
@pytest.mark.parametrize("fair_by", [None, "tag"])
def test_jobs_of_a_higher_priority_are_claimed_first(end: End, fair_by: str | None) -> None:
    one = prioritized(None, 9, 0, 1, 9, 1, fair_by=fair_by)
    end(one)
    assert one.claimed("q", "w", 4) == [2, 5, 4, 6]
    late = one.append("q", 7, priority=5).last_seq
    assert one.claimed("q", "w", 9) == [late, 1, 3]


@pytest.mark.parametrize("end", ENDS, ids=END_NAMES)
def test_a_job_keeps_its_priority_when_it_is_returned(end: End) -> None:
    one = prioritized(None, 3, 3, leases_durable=True)
    one.nack("q", "w", *one.claimed("q", "w", 2), reason="busy")
    one.append("q", 4, priority=2)
    assert one.claimed("q", "w", 1, 500) == [2]
    end(one)
    one.pass_time(500)
    assert one.claimed("q", "w", 9) == [2, 3, 4, 1]


@pytest.mark.parametrize("end", ENDS, ids=END_NAMES)
def test_a_delayed_job_keeps_its_priority(end: End) -> None:
    one = prioritized(0, 4)
    one.append("q", 3, priority=9, delay_ms=700)
    end(one)
    answer = explain(one.shard.state, "q", 3)
    assert isinstance(answer, dict)
    assert (answer["state"], answer["priority"]) == ("delayed", 9)
    assert one.claimed("q", "w") == [2]
    one.pass_time(700)
    assert one.claimed("q", "w", 9) == [3, 1]


@pytest.mark.parametrize("end", ENDS, ids=END_NAMES)
def test_an_ordered_queue_keeps_its_order_whatever_the_priority(end: End) -> None:
    one = queue(order_by="tag")
    for tag, priority in (("a", 0), ("b", 0), ("a", 9), ("b", 1), ("c", 2)):
        one.append("q", record(tag=tag), priority=priority)
    end(one)
    seqs = []
    while got := one.claimed("q", "w"):
        seqs += got
        one.ack("q", "w", *got)
    assert seqs == [5, 1, 3, 2, 4]


def test_a_parked_job_keeps_its_priority_when_it_is_released() -> None:
    one = prioritized(0, 6, max_deliveries=1)
    one.nack("q", "w", *one.claimed("q", "w"))
    assert one.claimed("q", "w") == [1]
    one.kill()
    one.put("q", max_deliveries=2)
    assert one.claimed("q", "w", 9) == [2, 1]


def test_the_oldest_job_is_not_the_one_with_the_highest_priority() -> None:
    one = prioritized(1)
    one.pass_time(3000)
    one.append("q", 2, priority=9)
    assert one.state("q").oldest_ready_ms >= 3000


@pytest.mark.parametrize("config", [{}, {"fair_by": "tag"}, {"order_by": "tag"}], ids=str)
def test_jobs_with_a_priority_leave_no_entries_behind(config: dict[str, object]) -> None:
    one = queue(**config)
    for _ in range(40):
        one.append("q", *[record(tag="x") for _ in range(20)], priority=3)
        while got := one.claimed("q", "w", 20):
            one.ack("q", "w", *got)
    jobs = one.shard.state.topics["q"].queue
    assert jobs is not None
    assert len(jobs._ready._again) <= STALE_MAX + 20
