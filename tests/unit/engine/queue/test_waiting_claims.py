"""Claims that wait for a job: who gets it, and what ends the wait."""

from __future__ import annotations

import pytest

from shared.contract.errors import TOPIC_NOT_FOUND
from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from topicsd.engine.queue.waiting_claims import SERVED_AT_ONCE, claim_with_wait, end_waits
from topicsd.engine.requests import ClaimRequest

MINUTE = 60_000
NODES = [f"w{number}" for number in range(3 * SERVED_AT_ONCE)]


class Waiters:
    """Claims that wait in the queue "q"."""

    def __init__(self, **config: object) -> None:
        self.one = OneShard()
        self.one.put("q", type="queue", **config)
        self.replies: dict[str, RecordedReply] = {}
        self.ends: dict[str, object] = {}

    def wait(self, *nodes: str, count: int = 1, wait_ms: int = 10_000) -> None:
        for node in nodes:
            self.replies[node] = RecordedReply()
            request = ClaimRequest(node, count, MINUTE, wait_ms)
            self.ends[node] = claim_with_wait(self.one.shard.state, "q", request, self.replies[node])
        self.one.settle()

    def end(self, node: str) -> None:
        end = self.ends[node]
        assert callable(end)
        end()

    def claimed(self) -> dict[str, list[int]]:
        """Return the jobs of the claims that have an answer."""
        self.one.settle()
        return {
            node: [one.seq for one in reply.answer.claimed]
            for node, reply in self.replies.items()
            if reply.has_answer
        }

    def check_no_trace(self) -> None:
        """Check that nothing of the claims is left."""
        state = self.one.shard.state
        assert not state.claim_lines
        assert not state.queue_timers.timers
        assert self.one.topic("q").waiters is None


def test_a_claim_that_finds_jobs_does_not_wait() -> None:
    waiters = Waiters()
    waiters.one.append("q", 1, 2)
    waiters.wait("a", count=5)
    assert waiters.claimed() == {"a": [1, 2]}
    assert not waiters.replies["a"].answer.has_waited
    waiters.check_no_trace()


def test_waiting_claims_get_jobs_in_the_order_of_their_arrival() -> None:
    waiters = Waiters()
    waiters.wait("a", "b", "c")
    waiters.one.append("q", 1)
    assert waiters.claimed() == {"a": [1]}
    assert waiters.replies["a"].answer.has_waited
    waiters.wait("d")
    waiters.one.append("q", 2, 3)
    assert waiters.claimed() == {"a": [1], "b": [2], "c": [3]}
    waiters.end("d")
    assert waiters.claimed()["d"] == []
    waiters.check_no_trace()


def test_a_new_claim_does_not_overtake_those_that_wait() -> None:
    waiters = Waiters()
    waiters.wait("a")
    waiters.one.send_append("q", 1)
    waiters.wait("b")
    assert waiters.claimed() == {"a": [1]}


def test_as_many_claims_as_there_are_jobs_are_served() -> None:
    waiters = Waiters()
    waiters.wait(*NODES)
    waiters.one.append("q", *range(len(NODES) - 1))
    assert waiters.claimed() == {node: [seq] for seq, node in enumerate(NODES[:-1], 1)}


def test_one_job_costs_one_attempt_however_many_claims_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waiters = Waiters()
    waiters.wait(*NODES)
    queue = waiters.one.topic("q").queue
    assert queue is not None
    calls = []
    collect = type(queue).collect
    monkeypatch.setattr(type(queue), "collect", lambda *given: calls.append(1) or collect(*given))
    waiters.one.append("q", 1)
    assert len(waiters.claimed()) == 1
    assert len(calls) < 5


def test_a_wait_ends_with_its_time() -> None:
    waiters = Waiters()
    waiters.wait("a", wait_ms=2000)
    waiters.wait("b", wait_ms=1 << 40)
    waiters.one.pass_time(1999)
    assert waiters.claimed() == {}
    waiters.one.pass_time(1)
    assert waiters.claimed() == {"a": []}
    waiters.one.pass_time(28_000)
    assert waiters.claimed() == {"a": [], "b": []}
    waiters.check_no_trace()


def test_a_wait_gets_what_becomes_ready_with_time_and_by_others() -> None:
    waiters = Waiters()
    waiters.one.append("q", 1, 2)
    waiters.one.claim("q", "gone", 1, 3000)
    waiters.one.claim("q", "other", 1, MINUTE)
    waiters.wait("a", "b", "c")
    waiters.one.append("q", 3, delay_ms=1000)
    waiters.one.pass_time(999)
    assert waiters.claimed() == {}
    waiters.one.pass_time(1)
    assert waiters.claimed() == {"a": [3]}
    waiters.one.pass_time(2000)
    assert waiters.claimed() == {"a": [3], "b": [1]}
    waiters.one.nack("q", "other", 2)
    assert waiters.claimed() == {"a": [3], "b": [1], "c": [2]}


def test_a_wait_gets_what_an_earlier_job_of_the_tag_blocked() -> None:
    waiters = Waiters(order_by="tag")
    waiters.one.append("q", record(1, "x"), record(2, "x"), record(3, "x"))
    waiters.one.claim("q", "other")
    waiters.wait("a", "b")
    waiters.one.ack("q", "other", 1)
    assert waiters.claimed() == {"a": [2]}
    waiters.one.delete("q", seqs=[2])
    assert waiters.claimed() == {"a": [2], "b": [3]}


def test_a_pause_ends_the_waits_and_its_end_serves_new_ones() -> None:
    waiters = Waiters()
    waiters.wait("a", "b")
    waiters.one.put("q", paused=True)
    assert waiters.claimed() == {"a": [], "b": []}
    waiters.check_no_trace()
    waiters.one.append("q", 1)
    waiters.wait("c", "d")
    assert waiters.claimed() == {"a": [], "b": []}
    waiters.one.put("q", paused=False)
    assert waiters.claimed() == {"a": [], "b": [], "c": [1]}


def test_a_wait_ends_with_the_shard_and_with_the_topic() -> None:
    waiters = Waiters()
    waiters.wait("a", "b")
    waiters.one.delete_topic("q")
    waiters.one.settle()
    assert [reply.code for reply in waiters.replies.values()] == [TOPIC_NOT_FOUND] * 2
    waiters.one.put("q", type="queue")
    waiters.wait("c")
    end_waits(waiters.one.shard.state)
    assert waiters.replies["c"].answer.claimed == []
    waiters.wait("d")
    assert waiters.replies["d"].answer.claimed == []
    waiters.check_no_trace()


@pytest.mark.parametrize("durable", [False, True])
def test_a_client_that_is_gone_gets_no_job(durable: bool) -> None:
    waiters = Waiters(durable=durable, leases_durable=durable)
    waiters.wait("a", "b")
    waiters.end("a")
    waiters.end("a")
    waiters.one.append("q", 1)
    assert waiters.claimed() == {"a": [], "b": [1]}
    waiters.end("b")
    waiters.check_no_trace()


def test_waiting_claims_of_one_group_share_the_jobs() -> None:
    waiters = Waiters(claim_jitter_ms=50)
    waiters.wait("a", "b", "c", count=9)
    waiters.one.pass_time(50)
    waiters.one.append("q", 1, 2, 3, 4)
    assert waiters.claimed() == {}
    waiters.end("c")
    waiters.one.pass_time(50)
    assert waiters.claimed() == {"a": [1, 3], "b": [2, 4], "c": []}
    waiters.check_no_trace()


def test_a_claim_that_finds_only_jobs_to_park_waits_on() -> None:
    waiters = Waiters(max_deliveries=1)
    waiters.one.append("q", 1)
    waiters.one.claim("q", "gone", 1, 1000)
    waiters.wait("a", "b")
    waiters.one.pass_time(1000)
    assert waiters.claimed() == {}
    waiters.one.append("q", 2)
    assert waiters.claimed() == {"a": [2]}


def test_a_line_whose_claims_are_served_together_later_does_not_keep_the_loop_busy() -> None:
    waiters = Waiters(claim_jitter_ms=50)
    waiters.wait("a", "b")
    waiters.one.pass_time(50)
    waiters.one.append("q", *range(3 * SERVED_AT_ONCE))
    assert waiters.claimed() == {}
    waiters.one.pass_time(50)
    assert waiters.claimed() == {"a": [1], "b": [2]}
    waiters.check_no_trace()
