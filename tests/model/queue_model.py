"""Random work on one queue, checked against an oracle.

The work has producers, workers that go silent, clock steps, restarts and kills, jobs with tags and delays,
cancelled jobs, pauses, and jobs that are parked and freed. The oracle knows the holder and the deadline of
each job as answers reported them, and whether the job was done. A request that had no answer before a kill
took effect once and completely, or not at all.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import msgspec

from shared.contract.topic_config import RetryPatch
from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from topicsd.engine.queue.explain import explain
from topicsd.engine.queue.job import ClaimedJob, Counts
from topicsd.engine.queue.settle import ack, extend, nack
from topicsd.engine.queue.waiting_claims import claim_with_wait
from topicsd.engine.requests import ClaimAnswer, ClaimRequest, SettleAnswer

QUEUE = "jobs"
NODES = ("a", "b", "c")
LEASES_MS = (200, 1000, 30_000)
TAGS = (None, None, "x", "y", "z")


class KnownJob:
    """One job, as the answers reported it."""

    def __init__(self, tag: str | None, not_before: int, was_delayed: bool, priority: int) -> None:
        self.tag = tag
        self.priority = priority
        self.not_before = not_before
        self.was_delayed = was_delayed
        self.returned_until = 0
        """When the delay of the last nack ends."""
        self.lease = 0
        self.node = ""
        self.held_until = 0
        self.deliveries = 0
        self.was_last = False
        """Whether the delivery was the last one when it was made."""
        self.may_be_done = False
        self.may_be_claimed = False


class QueueModel:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.keeps_leases = rng.random() < 0.5
        self.deliveries_max = rng.choice((0, 1, 3))
        self.is_in_order = rng.random() < 0.6
        self.is_fair = rng.random() < 0.5
        self.has_priorities = rng.random() < 0.5
        self.is_paused = False
        self.backs_off = rng.random() < 0.4
        self.stage = OneShard(segment_max_events=rng.choice((4, 1000)))
        self.stage.put(
            QUEUE,
            type="queue",
            durable=True,
            leases_durable=self.keeps_leases,
            max_deliveries=self.deliveries_max,
            order_by="tag" if self.is_in_order else None,
            fair_by="tag" if self.is_fair else None,
            retry=RetryPatch(300, 2.0, 1000) if self.backs_off else None,
        )
        self.jobs: dict[int, KnownJob] = {}
        self.done: set[int] = set()
        self.cancelled: set[int] = set()
        self.waiting: list[tuple[str, RecordedReply]] = []
        """Claims that wait for jobs."""

    def run(self, steps: int) -> None:
        moves = [self.produce] * 3 + [self.claim] * 5 + [self.settle] * 5
        moves += [self.pass_time] * 2 + [self.checkpoint, self.restart, self.restart_during_requests]
        moves += [self.cancel, self.pause, self.raise_deliveries_max, self.wait_for_jobs]
        for _ in range(steps):
            self.rng.choice(moves)()
            self.check()
        self.finish()

    # -- operations ----------------------------------------------------------------------------------------

    def produce(self) -> None:
        tags = [self.rng.choice(TAGS) for _ in range(self.rng.randint(1, 5))]
        delay_ms = self.rng.choice((None, None, 0, 400, 20_000))
        not_before = self.stage.clock.now_ms() + (delay_ms or 0)
        priority = self.rng.choice((None, 0, 1, 9)) if self.has_priorities else None
        records = [record(tag=tag) for tag in tags]
        answer = self.stage.append(QUEUE, *records, delay_ms=delay_ms, priority=priority)
        for seq, tag in enumerate(tags, answer.first_seq):
            self.jobs[seq] = KnownJob(tag, not_before, bool(delay_ms), priority or 0)

    def cancel(self) -> None:
        """Delete jobs by seq or by tag, in any state."""
        known = [*self.jobs]
        if self.rng.random() < 0.3:
            tag = self.rng.choice("xyz")
            deleted = {seq for seq in known if self.jobs[seq].tag == tag}
            answer = self.stage.delete(QUEUE, tag=tag)
        elif self.rng.random() < 0.3:
            after = self.rng.randint(max(known[-1] - 10, 0), known[-1] + 1) if known else 0
            deleted = {seq for seq in known if seq > after}
            answer = self.stage.delete(QUEUE, after_seq=after)
        else:
            deleted = set(self.rng.sample(known, min(len(known), 3)))
            answer = self.stage.delete(QUEUE, seqs=[*deleted, 10**6])
        assert answer.deleted == len(deleted)
        for seq in deleted:
            del self.jobs[seq]
        self.done |= deleted
        self.cancelled |= deleted

    def pause(self) -> None:
        self.is_paused = not self.is_paused and self.rng.random() < 0.5
        assert self.stage.put(QUEUE, paused=self.is_paused).config.paused == self.is_paused

    def raise_deliveries_max(self) -> None:
        """Raise `max_deliveries`, which frees the parked jobs: the queue has no dead-letter topic."""
        if self.deliveries_max:
            self.deliveries_max += 1
            self.stage.put(QUEUE, max_deliveries=self.deliveries_max)

    def send_claim(self) -> tuple[str, RecordedReply]:
        node = self.rng.choice(NODES)
        return node, self.stage.send_claim(QUEUE, node, self.rng.randint(1, 4), self.rng.choice(LEASES_MS))

    def wait_for_jobs(self) -> None:
        for _ in range(self.rng.randint(1, 3)):
            node, reply = self.rng.choice(NODES), RecordedReply()
            count, lease_ms, wait_ms = self.rng.randint(1, 3), self.rng.choice(LEASES_MS), 20_000
            request = ClaimRequest(node, count, lease_ms, wait_ms)
            claim_with_wait(self.stage.shard.state, QUEUE, request, reply)
            self.waiting.append((node, reply))
        self.stage.settle()

    def check_waiting(self) -> None:
        """Note the jobs of the waiting claims that were answered; the others wait because none is ready."""
        answered = [one for one in self.waiting if one[1].has_answer]
        self.waiting = [one for one in self.waiting if not one[1].has_answer]
        with_jobs = [(node, reply.answer) for node, reply in answered if reply.answer.claimed]
        for node, answer in sorted(with_jobs, key=lambda one: one[1].claimed[0].lease):
            self.check_claimed(node, answer)
        counts = self.stage.state(QUEUE).queue
        assert counts is not None
        assert not self.waiting or self.is_paused or not counts.ready

    def claim(self) -> None:
        answers = self.explain_all()
        claims = [self.send_claim() for _ in range(self.rng.randint(1, 3))]
        self.stage.settle()
        if not self.is_in_order:
            claimed = [one for _, reply in claims for one in reply.answer.claimed]
            self.check_choice(answers, sorted(claimed, key=lambda one: one.lease))
        for node, reply in claims:
            self.check_claimed(node, reply.answer)

    def explain_all(self) -> dict[int, dict[str, Any]]:
        answers = {seq: explain(self.stage.shard.state, QUEUE, seq) for seq in self.jobs}
        return {seq: one for seq, one in answers.items() if isinstance(one, dict)}

    def check_choice(self, answers: dict[int, dict[str, Any]], claimed: list[ClaimedJob]) -> None:
        """Check which of the ready jobs were claimed, one after another: the best by rule."""
        bound = self.deliveries_max or 1 << 60
        ready = {seq for seq, one in answers.items() if one["state"] == "ready" and one["deliveries"] < bound}
        in_flight = Counter(self.jobs[seq].tag for seq, one in answers.items() if one["state"] == "in_flight")
        has_job = {seq for seq in ready if answers[seq]["deliveries"] or self.jobs[seq].was_delayed}

        def rank(seq: int) -> tuple[int, ...]:
            job = self.jobs[seq]
            if self.is_fair:
                return (in_flight[job.tag],)
            return (-job.priority, 0 if job.priority else seq not in has_job, seq)

        for one in claimed:
            job = self.jobs[one.seq]
            assert one.seq in ready, f"{one.seq} was not ready"
            assert rank(one.seq) == min(map(rank, ready)), f"{one.seq} was claimed before its turn"
            of_tag = [seq for seq in ready if self.jobs[seq].tag == job.tag]
            best = min(of_tag, key=lambda seq: (-self.jobs[seq].priority, seq))
            assert not self.is_fair or one.seq == best, f"{one.seq} was claimed before {best}"
            ready.remove(one.seq)
            in_flight[job.tag] += 1

    def check_claimed(self, node: str, answer: ClaimAnswer) -> None:
        now = self.stage.clock.now_ms()
        for seq, text in answer.jobs.items():
            assert seq not in self.done, f"{seq} was done"
            assert f'"$seq":{seq}'.encode() in text
        assert not (self.is_paused and answer.claimed)
        for one in answer.claimed:
            job = self.jobs[one.seq]
            assert max(job.not_before, job.returned_until) <= now, f"{one.seq} is delayed"
            if self.is_in_order and job.tag is not None:
                self.check_turn(one.seq, job.tag, now)
            assert job.held_until + self.wait_ms_after(job) <= now, (
                f"{one.seq} has two holders or no back-off"
            )
            if self.keeps_leases and not job.may_be_claimed:
                assert one.deliveries == job.deliveries + 1
            assert not self.deliveries_max or one.deliveries <= self.deliveries_max
            deadline = msgspec.json.decode(answer.jobs[one.seq])["deadline"]
            job.lease, job.node, job.held_until = one.lease, node, deadline
            job.deliveries, job.may_be_done = one.deliveries, False
            job.was_last = one.deliveries == self.deliveries_max

    def wait_ms_after(self, job: KnownJob) -> int:
        """Return the back-off of a job that was not done."""
        backs_off = self.backs_off and job.lease and not job.was_last
        return min(300 << job.deliveries >> 1, 1000) if backs_off else 0

    def check_turn(self, seq: int, tag: str, now: int) -> None:
        queue = self.stage.topic(QUEUE).queue
        assert queue is not None
        for other, job in self.jobs.items():
            if job.tag == tag and other != seq:
                assert other > seq or other in queue.parked, f"{seq} was claimed before {other}"
                assert job.held_until <= now, f"{seq} was claimed while {other} is leased"

    def settle(self) -> None:
        known = [seq for seq, job in self.jobs.items() if job.lease]
        seqs = self.rng.sample(known, min(len(known), self.rng.randint(1, 4)))
        if not seqs:
            return
        node = self.jobs[seqs[0]].node
        verb = self.rng.choice((ack, ack, nack, extend))
        ms = self.rng.choice((0, 500, None)) if verb is nack else 5000
        leases = [self.jobs[seq].lease for seq in seqs]
        reply = self.stage.send_settle(verb, QUEUE, node, *seqs, leases=leases, ms=ms)
        self.stage.settle()
        answer = reply.answer
        assert isinstance(answer, SettleAnswer)
        assert sorted(answer.done + answer.skipped) == sorted(seqs)
        now = self.stage.clock.now_ms()
        for seq in seqs:
            job = self.jobs[seq]
            is_held = job.node == node and job.held_until > now
            assert seq in answer.done or not is_held, f"{seq} is leased, and was skipped"
        for seq in answer.done:
            job = self.jobs[seq]
            assert job.node == node
            if verb is ack:
                self.done.add(seq)
                del self.jobs[seq]
            elif verb is nack:
                waits_ms = self.wait_ms_after(job) if ms is None else ms
                job.lease, job.node, job.held_until, job.returned_until = 0, "", 0, now + waits_ms
            else:
                job.held_until = answer.deadline

    def pass_time(self) -> None:
        self.stage.pass_time(self.rng.choice((50, 300, 2000, 40_000)))

    def checkpoint(self) -> None:
        self.stage.checkpoint()

    def restart(self) -> None:
        self.rng.choice((self.stage.restart, self.stage.kill, self.stage.cut_power))()
        self.check_after_restart()

    def restart_during_requests(self) -> None:
        leased = [seq for seq, job in self.jobs.items() if job.lease][:3]
        for seq in leased:
            job = self.jobs[seq]
            self.stage.send_settle(ack, QUEUE, job.node, seq, leases=[job.lease])
            job.may_be_done = True
        self.send_claim()
        for job in self.jobs.values():
            job.may_be_claimed = True
        for _ in range(self.rng.randrange(4)):
            self.stage.turn()
        self.rng.choice((self.stage.kill, lambda: self.stage.cut_power(self.rng.randrange(1000))))()
        self.check_after_restart()

    def check_after_restart(self) -> None:
        self.waiting.clear()
        live = set(self.stage.seqs(QUEUE))
        assert not live & self.done
        for seq, job in list(self.jobs.items()):
            if seq not in live:
                assert job.may_be_done, f"{seq} was lost"
                self.done.add(seq)
                del self.jobs[seq]
            elif not self.keeps_leases:
                job.lease, job.node, job.held_until, job.returned_until = 0, "", 0, 0

    # -- checks --------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.check_waiting()
        counts = self.stage.state(QUEUE).queue
        assert counts is not None
        live = self.stage.topic(QUEUE).live_count
        waiting = counts.ready + counts.delayed + counts.blocked
        assert waiting + counts.in_flight + counts.parked == live == len(self.jobs)
        assert min(counts) >= 0
        self.check_states(counts)

    def check_states(self, counts: Counts) -> None:
        """Check that the states of the jobs add up to the counts, and that the right jobs are blocked."""
        answers = self.explain_all()
        states = {seq: str(one["state"]) for seq, one in answers.items()}
        assert all(one.get("priority", 0) == self.jobs[seq].priority for seq, one in answers.items())
        tally = Counter(states.values())
        assert tally["paused" if self.is_paused else "ready"] == counts.ready
        for state in ("in_flight", "delayed", "blocked", "parked"):
            assert tally[state] == getattr(counts, state), state
        for seq in self.done:
            answer = explain(self.stage.shard.state, QUEUE, seq)
            assert isinstance(answer, dict)
            assert answer["state"] == ("deleted" if seq in self.cancelled else "acked"), seq
        by_tag: dict[str | None, list[int]] = {}
        for seq in sorted(self.jobs):
            if states[seq] != "parked":
                by_tag.setdefault(self.jobs[seq].tag, []).append(seq)
        for tag, seqs in by_tag.items():
            in_flight = [seq for seq in seqs if states[seq] == "in_flight"]
            for seq in seqs:
                is_in_line = self.is_in_order and tag is not None
                has_to_wait = is_in_line and (seq != seqs[0] or bool(in_flight))
                if states[seq] not in ("in_flight", "delayed"):
                    assert (states[seq] == "blocked") == has_to_wait, seq

    def finish(self) -> None:
        """Check that every job that is not done can be claimed, except those delivered too often."""
        self.stage.put(QUEUE, paused=False)
        self.is_paused = False
        self.check()
        self.stage.pass_time(100_000)
        self.check()
        self.stage.pass_time(100_000)
        queue = self.stage.topic(QUEUE).queue
        assert queue is not None
        left = set(self.jobs)
        while got := self.stage.claimed(QUEUE, "last", 1000):
            self.check()
            assert left.issuperset(got)
            left -= {*got}
            self.stage.ack(QUEUE, "last", *got)
            for seq in got:
                del self.jobs[seq]
        self.check()
        assert left == set(queue.parked)
        for seq in queue.parked:
            assert queue.known_jobs[seq].deliveries == self.deliveries_max
