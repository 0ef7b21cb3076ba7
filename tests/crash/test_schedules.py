"""A script of schedules whose ticks pass, ended in each of its disk calls.

Whatever is left: each tick has at most one job, the jobs have no gap up to the last one, the schedule has
reached exactly the tick of its last job, and what was acknowledged is there.
"""

from __future__ import annotations

import msgspec
import pytest

from shared.contract.schedule_rule import ScheduleRule
from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard, RecordedReply
from tests.harness.sweeps.crash_sweep import without_newest_snapshot
from tests.harness.sweeps.script_sweep import sweep_kills, sweep_power_cuts
from topicsd.engine.schedules.change import delete_schedule, put_schedule
from topicsd.log.frame import Record

TICKS = 7
MINUTE = 60_000
SETTINGS = {"wal_file_bytes": 4096, "segment_max_events": 3, "checkpoint_interval_ms": 3_600_000}


class Script:
    """Schedules of one queue, the ticks that passed, and the answers that came before the end."""

    def __init__(self, disk: MemoryDisk, durability: str) -> None:
        self.puts: dict[str, RecordedReply] = {}
        self.gone = RecordedReply()
        self.passed = 0
        self.began_ms = 0
        self.now_ms = 0
        self.is_over = False
        clock = ManualClock()
        try:
            self._run(OneShard(disk=disk, clock=clock, **SETTINGS), durability)
        except MachineGoneError:
            return
        finally:
            self.now_ms = clock.now_ms()
        self.is_over = True

    def _run(self, one: OneShard, durability: str) -> None:
        one.pass_time(MINUTE - one.clock.now_ms() % MINUTE + 100)
        self.began_ms = one.clock.now_ms() - 100
        one.put("q", type="queue", durability=durability)
        for name in ("kept", "ended"):
            self.puts[name] = RecordedReply()
            rule = ScheduleRule("* * * * *", data=b'"%b"' % name.encode(), priority=len(name), catch_up="all")
            put_schedule(one.shard.state, "q", name, rule, self.puts[name])
            one.settle()
        for number in range(1, TICKS + 1):
            one.pass_time(MINUTE)
            self.passed = number
            if number == 3:
                delete_schedule(one.shard.state, "q", "ended", self.gone)
            if number % 3 == 0:
                one.shard.start_checkpoint()
            one.settle()
        one.close()

    def judge(self, disk: MemoryDisk, *, is_kept: bool) -> None:
        """`is_kept` says that what was acknowledged or passed has to be there."""
        clock = ManualClock(self.now_ms, 9000.0)
        one = OneShard(disk=disk, clock=clock, **SETTINGS)
        if "q" not in one.shard.state.topics:
            assert not self.puts
            return
        before = self._known(one)
        if (older := without_newest_snapshot(disk)) is not None:
            assert self._known(OneShard(disk=older, clock=clock, **SETTINGS)) == before
        schedules, ticks = before
        for name, reached_ms in schedules.items():
            assert reached_ms == max(ticks.get(name, [0])[-1], self.began_ms + 100 * (name not in ticks))
        if is_kept:
            for name, put in self.puts.items():
                is_gone = name == "ended" and self.passed >= 3
                assert name in schedules or is_gone or not put.has_answer
            assert not (self.gone.has_answer and "ended" in schedules)
            assert len(ticks.get("kept", [])) >= self.passed
        # The ticks of the time that was lost are caught up, and then it continues.
        one.pass_time(1)
        first = self.began_ms + MINUTE
        due = one.clock.now_ms() // MINUTE * MINUTE
        _, ticks = self._known(one)
        if "kept" in schedules:
            assert ticks.get("kept", []) == [*range(first, due + 1, MINUTE)]
            one.pass_time(MINUTE)
            one.kill()
            one.pass_time(1)
            _, ticks = self._known(one)
            assert ticks["kept"] == [*range(first, due + MINUTE + 1, MINUTE)]

    def _known(self, one: OneShard) -> tuple[dict[str, int], dict[str, list[int]]]:
        """Return what each schedule has reached, and the ticks of its jobs, which are in order."""
        ticks: dict[str, list[int]] = {}
        for job in _jobs(one):
            meta = msgspec.json.decode(job.meta or b"{}")
            assert job.data == b'"%b"' % meta["$schedule"].encode()
            ticks.setdefault(meta["$schedule"], []).append(meta["$schedule_ts"])
        for name, times in ticks.items():
            assert times == [*range(self.began_ms + MINUTE, times[-1] + 1, MINUTE)], name
        states = one.topic("q").schedules.items()
        return {name: state.reached_ms for name, state in states}, ticks


def _jobs(one: OneShard) -> list[Record]:
    jobs: list[Record] = []
    cursor, is_at_end = 0, False
    while not is_at_end:
        answer = one.read("q", cursor, limit=1000)
        jobs += answer.records
        cursor, is_at_end = answer.next_from_seq, answer.caught_up
    return jobs


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_the_power_goes_in_each_of_its_calls(durability: str) -> None:
    calls = sweep_power_cuts(lambda disk: Script(disk, durability), 3, is_kept=durability == "fsync")
    assert calls > 50


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_the_process_is_killed_in_each_of_its_calls(durability: str, torn: bool) -> None:
    assert sweep_kills(lambda disk: Script(disk, durability), torn=torn) > 50
