"""Cut the power or kill the process at every disk call in the life of a queue; every reply still holds.

The queue is of the class `fsync` and its leases are durable: a worker keeps each lease that it received, an
acked job stays done, and a job acked as a dead letter is counted once. In a queue ordered by tag no job is
claimed while an earlier job of its tag is leased or waiting, before its time, or while the queue is paused.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from tests.harness.shard.shard_driver import DATA_DIR, INSTANCE
from tests.harness.sweeps.crash_sweep import DEEP
from topicsd.disk.layout import create_data_dir
from topicsd.engine.queue.settle import end_jobs

OUTCOMES = 20 if DEEP else 3
QUEUE = "q"

pytestmark = pytest.mark.usefixtures("quiet_log")


class Life:
    """The history of the queue, and the replies received until its end."""

    def __init__(self, arm: Callable[[MemoryDisk], None] = lambda disk: None) -> None:
        self.disk = MemoryDisk(traced=True)
        create_data_dir(self.disk, DATA_DIR, 1, INSTANCE)
        self.clock = ManualClock()
        self.begun = self.disk.calls
        self.acked: set[int] = set()
        self.is_acking: set[int] = set()
        self.leases: dict[int, int] = {}
        self.dead_letter_count = 0
        self.appended = 0
        arm(self.disk)
        try:
            self._live()
            self.ended = False
        except MachineGoneError:
            self.ended = True

    def _live(self) -> None:
        stage = OneShard(disk=self.disk, clock=self.clock, wal_file_bytes=1 << 16)
        stage.put(QUEUE, type="queue", durable=True, leases_durable=True, max_deliveries=1)
        self.appended = stage.append(QUEUE, *range(12)).last_seq
        self._claim(stage, "a", 6)
        self._ack(stage, "a", 1, 3)
        stage.checkpoint()
        self.leases.pop(2)
        stage.nack(QUEUE, "a", 2)
        self._claim(stage, "b", 2)
        self._ack(stage, "a", 4)
        self._end_dead(stage, 2)
        stage.extend(QUEUE, "b", *[seq for seq in self.leases if seq > 6], ms=90_000)
        stage.pass_time(60)
        stage.checkpoint()
        self._ack(stage, "b", 7)
        stage.close()

    def _claim(self, stage: OneShard, node: str, count: int) -> None:
        for one in stage.claim(QUEUE, node, count, 60_000).claimed:
            self.leases[one.seq] = one.lease

    def _ack(self, stage: OneShard, node: str, *seqs: int) -> None:
        self.is_acking |= set(seqs)
        assert stage.ack(QUEUE, node, *seqs).done == list(seqs)
        self.acked |= set(seqs)
        for seq in seqs:
            del self.leases[seq]

    def _end_dead(self, stage: OneShard, seq: int) -> None:
        topic = stage.topic(QUEUE)
        assert topic.queue is not None
        assert [*topic.queue.parked] == [seq]
        self.is_acking.add(seq)
        reply = RecordedReply()
        end_jobs(
            stage.shard.state, topic, topic.queue, [seq], lambda: reply(True), reply, is_dead_letter=True
        )
        stage.settle()
        assert reply.answer is True
        self.dead_letter_count = 1
        self.acked.add(seq)

    def judge(self, disk: MemoryDisk) -> None:
        stage = OneShard(disk=disk, clock=ManualClock(self.clock.now_ms() + 1000, 5000.0))
        for _ in range(2):
            if QUEUE not in stage.shard.topic_names():
                assert not self.appended
                return
            self._judge_queue(stage)
            stage.kill()
        self._judge_claims(stage)

    def _judge_claims(self, stage: OneShard) -> None:
        got = {one.seq for one in stage.claim(QUEUE, "c", 100).claimed}
        assert not got & (self.acked | self.leases.keys()), "a job has two holders, or was done"

    def _judge_queue(self, stage: OneShard) -> None:
        topic, counts = stage.topic(QUEUE), stage.state(QUEUE).queue
        assert topic.queue is not None
        assert counts is not None
        live = set(stage.seqs(QUEUE))
        waiting = counts.ready + counts.delayed + counts.blocked
        assert waiting + counts.in_flight + counts.parked == len(live)
        assert not live & self.acked
        assert set(range(1, self.appended + 1)) - live <= self.is_acking
        for seq, lease in self.leases.items():
            assert seq not in live or topic.queue.known_jobs[seq].lease == lease, (
                f"the lease of {seq} is lost"
            )
        gone_as_dead = 2 in self.is_acking and 2 not in live and self.appended
        assert counts.dead_lettered == int(bool(gone_as_dead))
        assert counts.dead_lettered >= self.dead_letter_count


TAGS = ("a", "a", "a", "b", "b", None, None, "a", "c")


class LifeInOrder(Life):
    """With tags, delays, a cancelled job, one that is parked and freed, and a pause."""

    def _live(self) -> None:
        self.delayed: dict[int, int] = {}
        self.paused_reply: bool | None = False
        stage = OneShard(disk=self.disk, clock=self.clock, wal_file_bytes=1 << 16)
        config = {"order_by": "tag", "max_deliveries": 1}
        stage.put(QUEUE, type="queue", durable=True, leases_durable=True, **config)
        self.appended = stage.append(QUEUE, *[record(tag=tag) for tag in TAGS[:6]]).last_seq
        due = self.clock.now_ms() + 100_000
        self.delayed = dict.fromkeys((7, 8, 9), due)
        last = stage.append(QUEUE, *[record(tag=tag) for tag in TAGS[6:]], not_before=due).last_seq
        self.appended = last
        self._claim(stage, "a", 9)
        assert [*self.leases] == [1, 4, 6]
        self._ack(stage, "a", 1)
        stage.checkpoint()
        self._claim(stage, "a", 9)
        self.leases.pop(2)
        stage.nack(QUEUE, "a", 2)
        self._claim(stage, "b", 9)
        assert [*self.leases] == [4, 6, 3]
        self.is_acking.add(9)
        assert stage.delete(QUEUE, seqs=[9]).deleted == 1
        self.acked.add(9)
        stage.put(QUEUE, max_deliveries=3)
        assert stage.state(QUEUE).queue.blocked == 2  # type: ignore[union-attr]
        stage.pass_time(60)
        stage.checkpoint()
        self.paused_reply = None
        stage.put(QUEUE, paused=True)
        self.paused_reply = True
        self._ack(stage, "b", 3)
        stage.close()

    def _judge_claims(self, stage: OneShard) -> None:
        is_paused = stage.topic(QUEUE).config.paused
        assert self.paused_reply is None or is_paused == self.paused_reply
        assert not (is_paused and stage.claimed(QUEUE, "d", 9))
        stage.put(QUEUE, paused=False)
        done: list[int] = []
        for _ in range(2):
            while got := stage.claimed(QUEUE, "d", 9):
                assert not self.leases.keys() & {*got}, "a job has two holders"
                self._judge_turns(stage, got)
                done += stage.ack(QUEUE, "d", *got).done
            stage.pass_time(200_000)
            self.leases.clear()
        queue = stage.topic(QUEUE).queue
        assert queue is not None
        assert {*stage.seqs(QUEUE)} == {*queue.parked}
        assert all(queue.known_jobs[seq].deliveries for seq in queue.parked)
        assert not set(done) & self.acked

    def _judge_turns(self, stage: OneShard, got: list[int]) -> None:
        queue, now = stage.topic(QUEUE).queue, stage.clock.now_ms()
        assert queue is not None
        for seq in got:
            tag = TAGS[seq - 1]
            assert self.delayed.get(seq, 0) <= now, f"{seq} is delayed"
            ahead = [one for one in stage.seqs(QUEUE) if TAGS[one - 1] == tag and one < seq]
            assert tag is None or not set(ahead) - set(queue.parked), f"{seq} goes before {ahead}"


LIVES = [Life, LifeInOrder]


def _calls(kind: type[Life]) -> int:
    life = kind()
    assert not life.ended
    return life.disk.calls - life.begun


@pytest.mark.parametrize("kind", LIVES)
def test_what_a_queue_acked_holds_after_a_power_cut_at_every_call(kind: type[Life]) -> None:
    calls = _calls(kind)
    assert calls > 30
    for after in range(calls):
        life = kind(lambda disk, after=after: disk.cut_power_after(after))  # type: ignore[misc]
        assert life.ended
        for seed in range(OUTCOMES):
            life.judge(life.disk.after_power_cut(Random(f"{after} {seed}")))


@pytest.mark.parametrize("torn", [False, True], ids=["whole", "torn"])
@pytest.mark.parametrize("kind", LIVES)
def test_what_a_queue_acked_holds_after_a_kill_at_every_call(kind: type[Life], torn: bool) -> None:
    for after in range(_calls(kind)):
        life = kind(lambda disk, after=after: disk.kill_process_after(after, torn=torn))  # type: ignore[misc]
        assert life.ended
        life.judge(life.disk.after_process_kill())
