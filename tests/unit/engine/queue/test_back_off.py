"""Jobs that were not done: how long they wait with `retry`, and why they became dead letters."""

from __future__ import annotations

import pytest

from shared.contract.topic_config import RetryPatch
from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.queue.explain import explain

RETRY = RetryPatch(1000, 2.0, 3000)


def queue(**config: object) -> OneShard:
    one = OneShard()
    one.put("q", type="queue", **{"retry": RETRY, **config})
    return one


def job(one: OneShard, seq: int = 1) -> dict[str, object]:
    answer = explain(one.shard.state, "q", seq)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize("is_nacked", [True, False])
def test_each_delivery_waits_longer_up_to_the_bound(is_nacked: bool) -> None:
    one = queue()
    one.append("q", 1)
    for waits_ms in (1000, 2000, 3000, 3000):
        assert one.claimed("q", "w", lease_ms=500) == [1]
        if is_nacked:
            one.nack("q", "w", 1, ms=None)
        else:
            one.pass_time(500)
        one.pass_time(waits_ms - 1)
        assert one.claimed("q", "w") == []
        assert job(one)["state"] == "delayed"
        one.pass_time(1)


def test_a_delay_of_the_nack_takes_the_place_of_the_back_off() -> None:
    one = queue()
    one.append("q", 1, 2)
    one.claim("q", "w", 2)
    one.nack("q", "w", 1, ms=0)
    one.nack("q", "w", 2, ms=10)
    assert one.claimed("q", "w", 2) == [1]
    one.pass_time(10)
    assert one.claimed("q", "w", 2) == [2]


def test_the_last_holder_may_end_a_job_that_waits_for_its_back_off() -> None:
    one = queue()
    one.append("q", 1, 2)
    first, second = one.claim("q", "w", 2, 500).claimed
    one.pass_time(700)
    assert job(one)["state"] == "delayed"
    assert one.ack("q", "w", 1, leases=[first.lease]).done == [1]
    assert one.extend("q", "w", 2, leases=[second.lease], ms=5000).done == [2]
    assert job(one, 2)["state"] == "in_flight"


def test_jobs_of_one_nack_wait_as_long_as_each_was_delivered() -> None:
    one = queue(leases_durable=True)
    one.append("q", 1)
    one.nack("q", "w", *one.claimed("q", "w"), ms=0)
    one.append("q", 2)
    assert one.claimed("q", "w", 2) == [1, 2]
    now = one.clock.now_ms()
    one.nack("q", "w", 1, 2, ms=None, reason="busy")
    for end in (lambda: None, one.kill, one.checkpoint, one.cut_power):
        end()
        assert [job(one, seq)["until"] for seq in (1, 2)] == [now + 2000, now + 1000]
        assert [job(one, seq)["reason"] for seq in (1, 2)] == ["busy", "busy"]


@pytest.mark.parametrize("leases_durable", [False, True])
def test_a_wait_that_a_checkpoint_has_survives_a_restart(leases_durable: bool) -> None:
    one = queue(leases_durable=leases_durable)
    one.append("q", 1)
    (lease,) = one.claim("q", "w", 1, 500).claimed
    one.pass_time(600)
    assert job(one)["state"] == "delayed"
    one.checkpoint()
    one.kill()
    assert job(one)["state"] == "delayed"
    assert job(one)["reason"] == "lease expired at node w, 1 delivery"
    assert one.ack("q", "w", 1, leases=[lease.lease]).done == ([1] if leases_durable else [])


def test_a_job_in_order_blocks_the_later_ones_while_it_waits() -> None:
    one = queue(order_by="tag")
    one.append("q", record(1, "x"), record(2, "x"), record(3))
    assert one.claimed("q", "w", 9, 500) == [1, 3]
    one.pass_time(500)
    assert one.claimed("q", "w", 9) == []
    one.pass_time(1000)
    assert one.claimed("q", "w", 9) == [1, 3]


def test_the_last_delivery_has_no_back_off() -> None:
    one = queue(max_deliveries=1)
    one.append("q", 1)
    one.claim("q", "w", lease_ms=500)
    one.pass_time(500)
    assert one.claimed("q", "w") == []
    assert job(one)["state"] == "parked"


@pytest.mark.parametrize("leases_durable", [False, True])
@pytest.mark.parametrize("dead_letter", [None, "dead"])
def test_a_dead_letter_names_the_lease_that_expired(leases_durable: bool, dead_letter: str | None) -> None:
    one = queue(retry=None, max_deliveries=2, leases_durable=leases_durable, dead_letter=dead_letter)
    one.append("q", 1, 2)
    one.claim("q", "first", 2, 500)
    one.pass_time(500)
    one.nack("q", "first", 2, reason="no disk")
    assert one.claimed("q", "second", 2, 500) == [1, 2]
    one.nack("q", "second", 2)
    one.pass_time(500)
    assert one.claimed("q", "third", 2) == []
    reasons = ["lease expired at node second, 2 deliveries", "no disk"]
    for end in (lambda: None, one.kill, one.checkpoint, one.cut_power):
        end()
        assert [job(one, seq)["reason"] for seq in (1, 2)] == reasons
        assert [job(one, seq)["state"] for seq in (1, 2)] == ["parked", "parked"]
