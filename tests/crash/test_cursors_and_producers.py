"""A script of numbered writes and of cursors that move behind them, ended in each of its disk calls.

Whatever is left: the last number that the topic knows is that of its last record, no record is there twice
after everything was sent again, and a cursor is where it was last acked to be or where it was to go next.
"""

from __future__ import annotations

import pytest

from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard, RecordedReply
from tests.harness.sweeps.crash_sweep import without_newest_snapshot
from tests.harness.sweeps.script_sweep import sweep_kills, sweep_power_cuts
from topicsd.engine.read.cursors import delete_cursor, put_cursor
from topicsd.engine.requests import ProducerSeq

WRITES = 9
SETTINGS = {"wal_file_bytes": 4096, "segment_max_events": 3}


class Script:
    """What was sent to one topic, and the answers that came before the end."""

    def __init__(self, disk: MemoryDisk, durability: str) -> None:
        self.durability = durability
        self.writes: list[RecordedReply] = []
        self.places: list[RecordedReply] = []
        self.gone: RecordedReply | None = None
        self.is_over = False
        try:
            self._run(OneShard(disk=disk, **SETTINGS))
        except MachineGoneError:
            return
        self.is_over = True

    def _run(self, one: OneShard) -> None:
        one.put("t", durability=self.durability)
        for number in range(1, WRITES + 1):
            self.writes.append(one.send_append("t", number, producer=ProducerSeq("p", number)))
            one.settle()
            reply = RecordedReply()
            self.places.append(reply)
            put_cursor(one.shard.state, "t", "c", number, None, reply)
            if number == 2:
                put_cursor(one.shard.state, "t", "gone", number, None, RecordedReply())
            if number == 5:
                self.gone = RecordedReply()
                delete_cursor(one.shard.state, "t", "gone", self.gone)
            if number % 3 == 0:
                one.shard.start_checkpoint()
            if number % 2:
                one.turn()
            else:
                one.pass_time(60)
        one.settle()
        one.close()

    def judge(self, disk: MemoryDisk, *, is_kept: bool) -> None:
        """`is_kept` says that what was acked has to be there."""
        one = OneShard(disk=disk, clock=ManualClock(2_000_000_000_000, 9000.0), **SETTINGS)
        if "t" not in one.shard.state.topics:
            assert not self.writes
            return
        known = _known(one)
        if (older := without_newest_snapshot(disk)) is not None:
            assert _known(OneShard(disk=older, clock=one.clock, **SETTINGS)) == known
        last, places = known
        done = _data(one)
        assert done == list(range(1, last + 1))
        acked = sum(reply.has_answer and reply.code is None for reply in self.writes)
        assert last <= len(self.writes)
        placed = sum(reply.has_answer and reply.code is None for reply in self.places)
        assert places.get("c", 0) <= len(self.places)
        if is_kept:
            assert last >= acked
            assert places.get("c", 0) >= placed
            assert self.gone is None or not self.gone.has_answer or "gone" not in places
        for number in range(1, WRITES + 1):
            answer = one.append("t", number, producer=ProducerSeq("p", number))
            assert answer.deduped == (number <= last)
        assert _data(one) == list(range(1, WRITES + 1))
        one.kill()
        assert _known(one) == (WRITES, places)


def _known(one: OneShard) -> tuple[int, dict[str, int]]:
    topic = one.topic("t")
    producer = None if topic.producers is None else topic.producers.find("p")
    places = {name: cursor.from_seq for name, cursor in topic.cursors.items()}
    return (0 if producer is None else producer.producer_seq), places


def _data(one: OneShard) -> list[int]:
    values: list[int] = []
    cursor, is_at_end = 0, False
    while not is_at_end:
        answer = one.read("t", cursor, limit=1000)
        values += [int(record.data) for record in answer.records]
        cursor, is_at_end = answer.next_from_seq, answer.caught_up
    return values


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_the_power_goes_in_each_of_its_calls(durability: str) -> None:
    calls = sweep_power_cuts(lambda disk: Script(disk, durability), 3, is_kept=durability == "fsync")
    assert calls > 50


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_the_process_is_killed_in_each_of_its_calls(durability: str, torn: bool) -> None:
    assert sweep_kills(lambda disk: Script(disk, durability), torn=torn) > 50
