"""Random work on one queue beside an oracle: producers, workers that go silent, clock jumps, restarts, kills.

The oracle knows of each job who was told to have it, until when, and whether it was told to be done. What was
asked and not answered before a kill may have happened or not, once and whole.

What it must not know: how a queue keeps its jobs.
"""

from __future__ import annotations

from random import Random

from tests.harness.one_shard import OneShard, Told
from topicsd.engine.queue_settle import ack, extend, nack
from topicsd.engine.requests import ClaimAnswer, Settled

QUEUE = "jobs"
NODES = ("a", "b", "c")
LEASES_MS = (200, 1000, 30_000)


class Known:
    """One job, as those who asked were told."""

    def __init__(self) -> None:
        self.lease = 0
        self.node = ""
        self.held_until = 0
        self.deliveries = 0
        self.may_be_done = False
        self.may_be_claimed = False


class QueueModel:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.keeps_leases = rng.random() < 0.5
        self.deliveries_max = rng.choice((0, 0, 3))
        self.stage = OneShard(segment_max_events=rng.choice((4, 1000)))
        self.stage.put(
            QUEUE,
            type="queue",
            durable=True,
            leases_durable=self.keeps_leases,
            max_deliveries=self.deliveries_max,
        )
        self.jobs: dict[int, Known] = {}
        self.done: set[int] = set()

    def run(self, steps: int) -> None:
        moves = [self.produce] * 3 + [self.claim] * 5 + [self.settle] * 5
        moves += [self.pass_time] * 2 + [self.checkpoint, self.end, self.end_in_the_middle]
        for _ in range(steps):
            self.rng.choice(moves)()
            self.check()
        self.finish()

    # -- what happens --------------------------------------------------------------------------------------

    def produce(self) -> None:
        answer = self.stage.append(QUEUE, *range(self.rng.randint(1, 5)))
        self.jobs.update((seq, Known()) for seq in range(answer.first_seq, answer.last_seq + 1))

    def send_claim(self) -> tuple[str, Told]:
        node = self.rng.choice(NODES)
        return node, self.stage.send_claim(QUEUE, node, self.rng.randint(1, 4), self.rng.choice(LEASES_MS))

    def claim(self) -> None:
        asked = [self.send_claim() for _ in range(self.rng.randint(1, 3))]
        self.stage.settle()
        for node, told in asked:
            self.claimed(node, told.answer)

    def claimed(self, node: str, answer: ClaimAnswer) -> None:
        now = self.stage.clock.now_ms()
        for seq, text in answer.jobs.items():
            assert seq not in self.done, f"{seq} was done"
            assert f'"$seq":{seq}'.encode() in text
        for one in answer.claimed:
            job = self.jobs[one.seq]
            assert job.held_until <= now, f"{one.seq} has two holders"
            if self.keeps_leases and not job.may_be_claimed:
                assert one.deliveries == job.deliveries + 1
            assert not self.deliveries_max or one.deliveries <= self.deliveries_max
            queue = self.stage.topic(QUEUE).queue
            assert queue is not None
            job.lease, job.node, job.held_until = one.lease, node, queue.jobs[one.seq].deadline
            job.deliveries, job.may_be_done = one.deliveries, False

    def settle(self) -> None:
        known = [seq for seq, job in self.jobs.items() if job.lease]
        seqs = self.rng.sample(known, min(len(known), self.rng.randint(1, 4)))
        if not seqs:
            return
        node = self.jobs[seqs[0]].node
        verb = self.rng.choice((ack, ack, nack, extend))
        ms = self.rng.choice((0, 500)) if verb is nack else 5000
        leases = [self.jobs[seq].lease for seq in seqs]
        told = self.stage.send_settle(verb, QUEUE, node, *seqs, leases=leases, ms=ms)
        self.stage.settle()
        answer = told.answer
        assert isinstance(answer, Settled)
        assert sorted(answer.done + answer.skipped) == sorted(seqs)
        now = self.stage.clock.now_ms()
        for seq in seqs:
            job = self.jobs[seq]
            is_held = job.node == node and job.held_until > now
            assert seq in answer.done or not is_held, f"{seq} is held, and was skipped"
        for seq in answer.done:
            job = self.jobs[seq]
            assert job.node == node
            if verb is ack:
                self.done.add(seq)
                del self.jobs[seq]
            elif verb is nack:
                job.lease, job.node, job.held_until = 0, "", 0
            else:
                job.held_until = answer.deadline

    def pass_time(self) -> None:
        self.stage.pass_time(self.rng.choice((50, 300, 2000, 40_000)))

    def checkpoint(self) -> None:
        self.stage.checkpoint()

    def end(self) -> None:
        self.rng.choice((self.stage.restart, self.stage.kill, self.stage.cut_power))()
        self.ended()

    def end_in_the_middle(self) -> None:
        held = [seq for seq, job in self.jobs.items() if job.lease][:3]
        for seq in held:
            job = self.jobs[seq]
            self.stage.send_settle(ack, QUEUE, job.node, seq, leases=[job.lease])
            job.may_be_done = True
        self.send_claim()
        for job in self.jobs.values():
            job.may_be_claimed = True
        for _ in range(self.rng.randrange(4)):
            self.stage.turn()
        self.rng.choice((self.stage.kill, lambda: self.stage.cut_power(self.rng.randrange(1000))))()
        self.ended()

    def ended(self) -> None:
        live = set(self.stage.seqs(QUEUE))
        assert not live & self.done
        for seq, job in list(self.jobs.items()):
            if seq not in live:
                assert job.may_be_done, f"{seq} was lost"
                self.done.add(seq)
                del self.jobs[seq]
            elif not self.keeps_leases:
                job.lease, job.node, job.held_until = 0, "", 0

    # -- what holds ----------------------------------------------------------------------------------------

    def check(self) -> None:
        counts = self.stage.state(QUEUE).queue
        assert counts is not None
        live = self.stage.topic(QUEUE).live_count
        assert counts.ready + counts.in_flight + counts.delayed + counts.parked == live == len(self.jobs)
        assert min(counts) >= 0

    def finish(self) -> None:
        """Each job that is not done can be had, but for those that were delivered too often."""
        self.stage.pass_time(100_000)
        queue = self.stage.topic(QUEUE).queue
        assert queue is not None
        got = self.stage.claimed(QUEUE, "last", 1000)
        self.check()
        assert set(got) | set(queue.parked) == set(self.jobs)
        assert len(got) + len(queue.parked) == len(self.jobs)
        for seq in queue.parked:
            assert queue.jobs[seq].deliveries == self.deliveries_max
