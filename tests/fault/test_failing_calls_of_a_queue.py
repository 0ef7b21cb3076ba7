"""Any disk call in the life of a queue fails: each reply holds, and each job is in exactly one state."""

from __future__ import annotations

import errno

import pytest

from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from topicsd.engine.queue.explain import explain
from topicsd.engine.queue.settle import ack, nack
from topicsd.engine.requests import AppendAnswer, ClaimAnswer, DeleteAnswer, SettleAnswer

QUEUE = "q"

pytestmark = pytest.mark.usefixtures("quiet_log")


class Life:
    def __init__(self) -> None:
        self.stage = stage = OneShard(wal_file_bytes=1 << 16)
        config = {"order_by": "tag", "max_deliveries": 1, "leases_durable": True, "durable": True}
        stage.put(QUEUE, type="queue", **config)
        self.live: set[int] = set()
        self.in_doubt: set[int] = set()
        """Of those whose end or beginning was refused."""
        self.leased: set[int] = set()

    def live_on(self) -> None:
        self.append(*"aab", None)
        self.claim()
        self.append("a", "b", delay_ms=1000)
        self.settle(ack, 1)
        self.claim()
        self.stage.checkpoint()
        self.settle(nack, 2)
        self.claim()
        self.delete(3, 5)
        self.put(max_deliveries=3)
        self.put(paused=True)
        self.append(None)
        self.put(paused=False)
        self.claim()
        self.stage.pass_time(1000)
        self.claim()

    def append(self, *tags: str | None, delay_ms: int | None = None) -> None:
        answer = self.answer_of(
            self.stage.send_append(QUEUE, *[record(tag=tag) for tag in tags], delay_ms=delay_ms)
        )
        if isinstance(answer, AppendAnswer):
            self.live |= {*range(answer.first_seq, answer.last_seq + 1)}

    def claim(self) -> None:
        answer = self.answer_of(self.stage.send_claim(QUEUE, "w", 9))
        if isinstance(answer, ClaimAnswer):
            self.leased |= {one.seq for one in answer.claimed}

    def settle(self, verb: object, seq: int) -> None:
        answer = self.answer_of(self.stage.send_settle(verb, QUEUE, "w", seq))  # type: ignore[arg-type]
        if isinstance(answer, SettleAnswer) and answer.done:
            self.leased.discard(seq)
            if verb is ack:
                self.live.discard(seq)
        elif verb is ack:
            self.in_doubt.add(seq)

    def delete(self, *seqs: int) -> None:
        answer = self.answer_of(self.stage.send_delete(QUEUE, seqs=list(seqs)))
        if isinstance(answer, DeleteAnswer):
            self.live -= {*seqs}
            self.leased -= {*seqs}
        else:
            self.in_doubt |= {*seqs}

    def put(self, **patch: object) -> None:
        self.answer_of(self.stage.send_put(QUEUE, **patch))

    def answer_of(self, reply: RecordedReply) -> object:
        self.stage.settle()
        assert reply.has_answer
        self.check()
        return reply.answer

    def check(self) -> None:
        """Each live record is one job in one state, and states add up to the counts."""
        topic, counts = self.stage.topic(QUEUE), self.stage.state(QUEUE).queue
        assert counts is not None
        waiting = counts.ready + counts.delayed + counts.blocked
        assert waiting + counts.in_flight + counts.parked == topic.live_count
        states: dict[str, int] = {}
        seq = topic.next_live(1)
        while seq <= topic.head:
            answer = explain(self.stage.shard.state, QUEUE, seq)
            assert isinstance(answer, dict)
            states[str(answer["state"])] = states.get(str(answer["state"]), 0) + 1
            seq = topic.next_live(seq + 1)
        # The outcome of an ack that failed with the log is unknown before the next start.
        states["in_flight"] = states.get("in_flight", 0) + states.pop("ending", 0)
        ready = states.pop("ready", 0) + states.pop("paused", 0)
        whole = {"in_flight": counts.in_flight, "delayed": counts.delayed, "blocked": counts.blocked}
        assert {**dict.fromkeys((*whole, "parked"), 0), **states} == {**whole, "parked": counts.parked}
        assert ready == counts.ready

    def end(self) -> None:
        """Check that each reply still holds after another start."""
        self.stage.kill()
        self.check()
        live = {*self.stage.seqs(QUEUE)}
        assert self.live - self.in_doubt <= live
        self.stage.put(QUEUE, paused=False)
        got = {*self.stage.claimed(QUEUE, "v", 9)}
        assert not got & (self.leased - self.in_doubt)
        self.check()


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_each_job_is_in_one_state_whatever_call_fails(error: int, forever: bool) -> None:
    fired, nth = True, 0
    while fired:
        nth += 1
        life = Life()
        fault = life.stage.disk.fail(None, nth, error=error, forever=forever)
        life.live_on()
        fired = fault.fired > 0
        life.end()
    assert nth > 20
