from __future__ import annotations

from random import Random

import pytest

from tests.harness.shard.one_shard import OneShard
from topicsd.engine.queue.order.fresh_jobs import FreshJobs


class Log:
    """Live seqs."""

    leases_in_flight = 0
    live_count = 0
    earliest_seq = 1

    def __init__(self, *seqs: int) -> None:
        self.live = set(seqs)
        self.head = max(seqs, default=0)

    @property
    def totals(self) -> Log:
        return self

    def retry_wait_ms(self, deliveries: int) -> int:
        return 0

    def next_live(self, seq: int) -> int:
        return min((one for one in self.live if one >= seq), default=self.head + 1)


class Known(set[int]):
    """Jobs, and how often a lookup was made."""

    looks = 0

    def __contains__(self, seq: object) -> bool:
        self.looks += 1
        return super().__contains__(seq)


@pytest.mark.parametrize("seed", range(50))
def test_the_next_is_the_first_live_record_that_is_no_job(seed: int) -> None:
    random = Random(seed)
    log, jobs, fresh = Log(), Known(), FreshJobs()
    for _ in range(200):
        count = random.randrange(1, 9)
        come = range(log.head + 1, log.head + 1 + count)
        log.live |= {*come}
        log.head += count
        if random.random() < 0.5:
            for seq in come:
                jobs.add(seq)
                fresh.note_job(seq)
        for seq in random.sample(sorted(log.live), random.randrange(len(log.live) // 2 + 1)):
            log.live.discard(seq)
            jobs.discard(seq)
        expected = min((seq for seq in log.live if not set.__contains__(jobs, seq)), default=0)
        seq = fresh.next(log, jobs)
        assert seq == expected
        if seq and random.random() < 0.7:
            jobs.add(seq)
            fresh.note_job(seq)


@pytest.mark.parametrize("rows", [1, 5])
def test_jobs_in_a_row_are_one_step(rows: int) -> None:
    log, jobs, fresh = Log(*range(1, 2 + 100 * rows)), Known(), FreshJobs()
    for seq in range(2, 2 + 100 * rows):
        if seq % 100:
            jobs.add(seq)
            fresh.note_job(seq)
    assert fresh.next(log, jobs) == 1
    jobs.add(1)
    fresh.note_job(1)
    jobs.looks = 0
    assert fresh.next(log, jobs) == 100
    assert jobs.looks <= 2


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_a_start_finds_the_rows_again(end: str) -> None:
    stage = OneShard()
    stage.put("q", type="queue")
    stage.append("q", 1)
    stage.append("q", *range(100), delay_ms=1000)
    stage.append("q", *range(50))
    stage.append("q", *range(100), delay_ms=1000)
    stage.append("q", "last")
    assert stage.claimed("q", "w", 30) == [1, *range(102, 131)]
    stage.ack("q", "w", 1)
    getattr(stage, end)()
    queue = stage.topic("q").queue
    assert queue is not None
    known = Known(queue.known_jobs)
    fresh = queue._ready.position.next(stage.topic("q"), known)
    assert fresh == (102 if end == "kill" else 131)
    assert known.looks <= 2
    while (seq := stage.claimed("q", "w")) and seq != [252]:
        pass
    assert seq == [252]
