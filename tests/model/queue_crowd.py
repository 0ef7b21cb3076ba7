"""Producers, hundreds of workers that may go silent, and operators, over queues on two shards.

Some jobs are delayed or have a priority, some claims wait for jobs, and some queues are ordered by tag, fair
to tags, or delay jobs that were not done. Either shard may be killed or lose power at any call, and the clock
may step. The model identifies a job by the number in its data, because its seq changes on
the way to the dead-letter topic and back.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from random import Random
from typing import Any

from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import RecordedReply
from tests.harness.stage.transfer_shards import TransferShards

WORKERS = 200
QUEUES = {"jobs-0": "failed-1", "mail-1": "parked-0", "local-0": "parked-0"}
"""The queues, with their dead-letter topics."""
LEASES_MS = (200, 200, 2000, 30_000)
WAITS_MS = (0, 0, 0, 400, 20_000)
TAGS = (None, "x", "y", "z")
RETRY = {"base_ms": 300, "factor": 2, "max_ms": 1000}


class KnownJob:
    """The expected state of one job."""

    def __init__(self, queue: str, tag: str | None, not_before: int) -> None:
        self.queue = queue
        self.tag = tag
        self.not_before = not_before
        self.exists = False
        self.is_done = False
        self.doubts = 0
        """The number of acks of the job without an answer."""
        self.lease = ""
        self.held_until = 0
        self.retry_ms = 0
        """The back-off after the present delivery."""
        self.is_last = False
        """Whether the present delivery is the last one: then no wait precedes the dead-letter topic."""
        self.returned_until = 0
        """When the wait after a delivery ends."""

    def forget_leases(self) -> None:
        self.lease, self.held_until, self.returned_until = "", 0, 0


class HeldLease:
    """A lease as its worker received it."""

    def __init__(self, worker: str, number: int, seq: int, lease: str) -> None:
        self.worker = worker
        self.number = number
        self.seq = seq
        self.lease = lease


class QueueCrowd:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.stage = TransferShards(self._after_loss, segment_max_events=rng.choice((4, 1000)))
        self.keeps_leases = {queue: rng.random() < 0.6 for queue in QUEUES}
        self.deliveries_max = {queue: rng.choice((0, 1, 1, 2)) for queue in QUEUES}
        self.is_in_order = {queue: rng.random() < 0.5 for queue in QUEUES}
        self.backs_off = {queue: rng.random() < 0.4 for queue in QUEUES}
        self.jobs: dict[int, KnownJob] = {}
        self.leases: list[HeldLease] = []
        self.superseded: list[HeldLease] = []
        """Leases that the same worker has replaced by a newer lease of the job."""
        self.waiting: list[RecordedReply] = []
        """Claims that wait for jobs, also those whose shard was lost."""
        self.counts: Counter[str] = Counter()
        for queue, dead in QUEUES.items():
            self._request("put_topic", dead, {"durable": True})
            config = {
                "type": "queue",
                "durable": True,
                "leases_durable": self.keeps_leases[queue],
                "max_deliveries": self.deliveries_max[queue],
                "dead_letter": dead,
                "order_by": "tag" if self.is_in_order[queue] else None,
                "fair_by": rng.choice(("tag", None)),
                "retry": RETRY if self.backs_off[queue] else None,
            }
            self._request("put_topic", queue, config)

    def run(self, steps: int) -> None:
        moves = [self.produce] * 3 + [self.claim] * 6 + [self.settle] * 6 + [self.pass_time] * 3
        moves += [
            self.set_clock,
            self.redrive,
            self.ack_superseded,
            self.crash,
            *[self.crash_during_work] * 2,
            self.go_silent,
        ]
        for _ in range(steps):
            self.rng.choice(moves)()
            self.check()
        self.finish()

    # -- operations ----------------------------------------------------------------------------------------

    def produce(self) -> None:
        sent: list[tuple[list[int], RecordedReply]] = []
        for _ in range(self.rng.randint(1, 3)):
            queue = self.rng.choice(list(QUEUES))
            numbers = [len(self.jobs) + index for index in range(self.rng.randint(1, 6))]
            tag, delay_ms = self.rng.choice(TAGS), self.rng.choice((0, 0, 400, 20_000))
            not_before = self.stage.clock.now_ms() + delay_ms
            self.jobs.update((number, KnownJob(queue, tag, not_before)) for number in numbers)
            records = [{"data": number, "tag": tag} for number in numbers]
            body = {"records": records, "delay_ms": delay_ms, "priority": self.rng.choice((0, 0, 5, 9))}
            sent.append((numbers, self.stage.send("append", queue, body)))
        self.stage.settle()
        for numbers, reply in sent:
            if reply.has_answer:
                for number in numbers:
                    self.jobs[number].exists = True

    def claim(self) -> None:
        for _ in range(self.rng.randint(1, 8)):
            # A few workers claim often, so that a worker gets the same job twice.
            queue, worker = (
                self.rng.choice(list(QUEUES)),
                f"w{self.rng.randrange(self.rng.choice((3, 3, WORKERS)))}",
            )
            body = {
                "node": worker,
                "max": self.rng.randint(1, 4),
                "lease_ms": self.rng.choice(LEASES_MS),
                "wait_ms": self.rng.choice(WAITS_MS),
            }
            reply = self.stage.send("claim", queue, body, partial(self._on_claimed, queue, worker))
            self.waiting.append(reply)
        self.stage.settle()
        self.waiting = [one for one in self.waiting if not one.has_answer]

    def _on_claimed(self, queue: str, worker: str, answer: Any) -> None:
        for one in answer["claimed"]:
            self._note_claimed(queue, worker, one)

    def _note_claimed(self, queue: str, worker: str, job_body: dict[str, Any]) -> None:
        number, job = job_body["data"], self.jobs[job_body["data"]]
        assert job.queue == queue
        assert not job.is_done, f"{number} was done, and {worker} leased it"
        now_ms = self.stage.clock.now_ms()
        if job.held_until <= now_ms:
            self._end_lease(job)
        assert not job.held_until, f"{number} has two holders"
        assert job.not_before <= now_ms, f"{number} is delayed"
        assert job.returned_until <= now_ms, f"{number} was not done, and did not wait"
        self.counts["after a back-off"] += job.returned_until > 0
        if self.is_in_order[queue] and job.tag is not None:
            self._check_turn(job_body["$seq"], number)
        bound = self.deliveries_max[queue]
        assert not bound or job_body["deliveries"] <= bound
        job.exists = True
        job.lease, job.held_until, job.returned_until = job_body["lease_id"], job_body["deadline"], 0
        job.is_last = job_body["deliveries"] == bound
        retry_ms = min(RETRY["base_ms"] << job_body["deliveries"] >> 1, RETRY["max_ms"])
        job.retry_ms = retry_ms if self.backs_off[queue] and not job.is_last else 0
        # The worker has the same job under a new lease, and may still ack it under the old one.
        again = [one for one in self.leases if (one.worker, one.number) == (worker, number)]
        self.leases = [one for one in self.leases if one not in again]
        self.superseded += again
        self.leases.append(HeldLease(worker, number, job_body["$seq"], job_body["lease_id"]))
        self.counts["claimed"] += 1

    def _end_lease(self, job: KnownJob) -> None:
        """Note that the lease of a job has run out, if it has one."""
        if job.held_until and job.retry_ms:
            job.returned_until = job.held_until + job.retry_ms
        job.held_until = 0

    def _check_turn(self, seq: int, number: int) -> None:
        """Check that no other job of the tag is leased, and that earlier ones are removed or parked."""
        job, now_ms = self.jobs[number], self.stage.clock.now_ms()
        assert job.tag is not None
        for other, one in self.jobs.items():
            if (one.queue, one.tag) == (job.queue, job.tag) and other != number:
                is_held = one.held_until > now_ms and not one.is_done and not one.doubts
                assert not is_held, f"{number} was claimed while {other} is leased"
        shard = self.stage.owner(job.queue)
        queue = shard.topic(job.queue).queue
        assert queue is not None
        live = shard.read(job.queue, limit=1000, with_tags=True).records
        tag = job.tag.encode()
        ahead = {one.seq for one in live if one.seq < seq and one.tag == tag}
        assert not ahead - queue.parked.keys(), f"{number} was claimed before the jobs at {ahead}"
        self.counts["in turn"] += 1

    def settle(self) -> None:
        """Let several workers ack, nack or extend their jobs of one queue."""
        sent: list[tuple[str, list[HeldLease], RecordedReply]] = []
        for _ in range(self.rng.randint(1, 6)):
            if not self.leases:
                break
            first = self.leases[self.rng.randrange(len(self.leases))]
            queue = self.jobs[first.number].queue
            of_worker = [
                one
                for one in self.leases
                if one.worker == first.worker and self.jobs[one.number].queue == queue
            ]
            verb = self.rng.choice(("ack", "ack", "ack", "nack", "nack", "extend"))
            body: dict[str, object] = {
                "node": first.worker,
                "seqs": [one.seq for one in of_worker],
                "lease_ids": [one.lease for one in of_worker],
            }
            delay_ms = self.rng.choice((None, 0, 500))
            if verb == "nack" and delay_ms is not None:
                body["delay_ms"] = delay_ms
            if verb == "extend":
                body["lease_ms"] = self.rng.choice(LEASES_MS)
            else:
                self.leases = [one for one in self.leases if one not in of_worker]
            if verb == "ack":
                for one in of_worker:
                    self.jobs[one.number].doubts += 1
            then = partial(self._on_settled, verb, of_worker, delay_ms=delay_ms)
            sent.append((verb, of_worker, self.stage.send(verb, queue, body, then)))
        self.stage.settle()
        for verb, settled, reply in sent:
            if verb == "nack" and not reply.has_answer:
                for one in settled:
                    self.jobs[one.number].held_until = 0
            if verb == "extend" and not reply.has_answer:
                # The lease may end earlier now.
                for one in settled:
                    job = self.jobs[one.number]
                    job.held_until = min(job.held_until, self.stage.clock.now_ms() + min(LEASES_MS))

    def ack_superseded(self) -> None:
        superseded, self.superseded = self.superseded, []
        for one in superseded:
            body = {"node": one.worker, "seqs": [one.seq], "lease_ids": [one.lease]}
            self.jobs[one.number].doubts += 1
            self.stage.send("ack", self.jobs[one.number].queue, body, partial(self._on_settled, "ack", [one]))
        self.stage.settle()

    def _on_settled(
        self, verb: str, settled: list[HeldLease], answer: Any, delay_ms: int | None = None
    ) -> None:
        now_ms = self.stage.clock.now_ms()
        for one in settled:
            job = self.jobs[one.number]
            is_last = job.lease == one.lease
            job.doubts -= verb == "ack"
            is_done = one.seq not in answer["skipped"]
            if not is_done:
                # The shard may have crashed in between, and lost the lease.
                is_current = is_last and job.held_until and not job.doubts
                assert not is_current, f"{one.number} is leased, and was skipped"
                continue
            assert is_last, f"{one.number} has a newer lease, and {verb} accepted the old one"
            self.counts[verb] += 1
            if verb == "ack":
                assert not job.is_done, f"{one.number} is done twice"
                job.is_done = True
            elif verb == "nack":
                wait_ms = job.retry_ms if delay_ms is None else delay_ms
                job.held_until, job.returned_until = 0, 0 if job.is_last else now_ms + wait_ms
            else:
                job.held_until, job.returned_until = answer["deadlines"][str(one.seq)], 0

    def go_silent(self) -> None:
        """Let some workers disappear."""
        silent = {f"w{self.rng.randrange(WORKERS)}" for _ in range(WORKERS // 4)}
        self.leases = [one for one in self.leases if one.worker not in silent]

    def pass_time(self) -> None:
        self.stage.pass_time(self.rng.choice((100, 300, 1000, 3000)))

    def set_clock(self) -> None:
        self.stage.clock.step_wall(self.rng.choice((-60_000, -1000, 500, 40_000)))
        self.stage.settle()

    def redrive(self) -> None:
        dead = self.rng.choice(list(QUEUES.values()))
        seqs = self.stage.owner(dead).seqs(dead)
        request: dict[str, object] = {"max": self.rng.choice((1, 3, 1000))}
        if self.rng.random() < 0.5:
            request["seqs"] = self.rng.sample(seqs, len(seqs) // 2)
        reply = self.stage.send("redrive", dead, request)
        self.stage.settle()
        if reply.has_answer:
            self.counts["redriven"] += reply.answer[1].get("redriven", 0)

    # -- crashes -------------------------------------------------------------------------------------------

    def _after_loss(self, disk: MemoryDisk) -> MemoryDisk:
        number = next(at for at, shard in enumerate(self.stage.shards) if shard.disk is disk)
        for job in self.jobs.values():
            if job.queue.endswith(str(number)) and not self.keeps_leases[job.queue]:
                job.forget_leases()
        if self.rng.random() < 0.5:
            return disk.after_process_kill()
        return disk.after_power_cut(Random(self.rng.random()))

    def crash(self) -> None:
        self.stage.lose(self.rng.randrange(2))
        self.counts["crashes"] += 1

    def crash_during_work(self) -> None:
        """Crash a shard at a random disk call of the operations that follow."""
        self.stage.shards[self.rng.randrange(2)].disk.kill_process_after(self.rng.randrange(30), torn=True)
        losses = self.stage.losses
        for _ in range(10):
            self.rng.choice((self.claim, self.settle, self.redrive, self.redrive, self.pass_time))()
            self.check()
        self.counts["crashes during work"] += self.stage.losses - losses

    # -- checks --------------------------------------------------------------------------------------------

    def check(self) -> None:
        now_ms = self.stage.clock.now_ms()
        self.counts["waited"] += sum(
            one.has_answer and bool(one.answer[1]["claimed"]) for one in self.waiting
        )
        self.waiting = [one for one in self.waiting if not one.has_answer]
        for job in self.jobs.values():
            # A job that was due once may have been collected, even if the clock steps back later.
            if job.held_until <= now_ms:
                self._end_lease(job)
            if job.returned_until <= now_ms:
                job.returned_until = 0
            if job.not_before <= now_ms:
                job.not_before = 0
        for queue in QUEUES:
            counts = self.stage.owner(queue).state(queue).queue
            assert counts is not None
            live = self.stage.owner(queue).topic(queue).live_count
            waiting = counts.ready + counts.delayed + counts.blocked
            assert waiting + counts.in_flight + counts.parked == live, (queue, counts)
            assert min(counts) >= 0
        for number, shard in enumerate(self.stage.shards):
            counts_by_queue = [shard.state(queue).queue for queue in QUEUES if queue.endswith(str(number))]
            in_flight = sum(counts.in_flight for counts in counts_by_queue if counts is not None)
            assert shard.shard.state.totals.leases_in_flight == in_flight

    def finish(self) -> None:
        """Without further crashes, check that each job is in its queue once, and drain the queues."""
        for shard in self.stage.shards:
            shard.disk.kill_process_after(1 << 60)
        self.stage.pass_time(max(WAITS_MS))
        assert not any(shard.shard.state.claim_lines for shard in self.stage.shards)
        self._wait_for_all()
        for _ in range(50):
            self.stage.pass_time(1000)
            left = [dead for dead in QUEUES.values() if self.stage.owner(dead).state(dead).count]
            left += [one for one in QUEUES if self.stage.owner(one).topic(one).queue.parked]  # type: ignore[union-attr]
            if not left:
                break
            for dead in QUEUES.values():
                self._request("redrive", dead, {})
        else:
            raise AssertionError(f"{left} are not empty")
        found_numbers = Counter(number for queue in QUEUES for number, _ in self.stage.records(queue))
        assert not [number for number, count in found_numbers.items() if count > 1], (
            "a job is in its queue twice"
        )
        for number, job in self.jobs.items():
            assert not (job.is_done and found_numbers[number]), f"{number} was done and still exists"
            is_missed = job.exists and not (job.is_done or job.doubts or found_numbers[number])
            assert not is_missed, f"{number} is lost"
        for queue in QUEUES:
            self._drain(queue)

    def _wait_for_all(self) -> None:
        self.stage.clock.step_wall(100_000)
        self.check()

    def _drain(self, queue: str) -> None:
        while self.stage.owner(queue).state(queue).count:
            self._wait_for_all()
            answer = self._request("claim", queue, {"node": "last", "max": 100})
            seqs = [one["$seq"] for one in answer["claimed"]]
            for one in answer["claimed"]:
                self._note_claimed(queue, "last", one)
            if seqs:
                assert self._request("ack", queue, {"node": "last", "seqs": seqs})["acked"] == len(seqs)
                for one in answer["claimed"]:
                    self.jobs[one["data"]].is_done = True
            else:
                # Parked and moved to the dead-letter topic: redrive returns them as fresh jobs.
                self.stage.pass_time(1000)
                self._request("redrive", QUEUES[queue], {})

    def _request(self, operation: str, topic: str, body: object) -> Any:
        answer = self.stage.request(operation, topic, body)
        assert answer is not None
        assert answer[0] in (200, 201), answer
        return answer[1]
