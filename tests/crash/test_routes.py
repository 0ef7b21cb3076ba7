"""Routes copy while rules are created, changed and deleted; the script ends in each of its disk calls.

Whatever is left: a rule that was acked is there, and one whose end was acked is not; no topic holds a copy of
a record that its source lost; and once all is quiet again each destination has exactly what its source has,
in its order, or a lost range for the records that the source evicted.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from shared.contract.route_rule import RouteRule
from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import RecordedReply
from tests.harness.stage.route_shards import RouteShards
from tests.harness.sweeps.crash_sweep import without_newest_snapshot
from tests.harness.sweeps.script_sweep import sweep_kills, sweep_power_cuts
from topicsd.engine.routes.route import delete_route

WRITES = 9
SETTINGS = {"wal_file_bytes": 8192, "segment_max_events": 3}
RULES = {
    name: RouteRule(f"{name[0]}>{name[1]}", *name, is_from_start=True) for name in ("ab", "bc", "ad", "te")
}


class Script:
    """The requests of the script, and the replies that arrived before its end."""

    def __init__(self, disk: MemoryDisk, durability: str) -> None:
        self.durability = durability
        self.writes: list[RecordedReply] = []
        self.made: dict[str, RecordedReply] = {}
        self.gone: RecordedReply | None = None
        self.is_over = False
        try:
            self._run(RouteShards(disk=disk, **SETTINGS))
        except MachineGoneError:
            return
        self.is_over = True

    def _run(self, stage: RouteShards) -> None:
        one = stage.shards[0]
        for name in "abd":
            one.put(name, durability="fsync" if name == "a" else self.durability)
        one.put("c", durability="fsync")
        one.put("t", cap_records=2)
        one.put("e", cap_records=1, discard="reject")
        for name in ("ab", "ad", "te"):
            self.made[name] = stage.send_put_route(RULES[name])
        for number in range(1, WRITES + 1):
            self.writes.append(one.send_append("a", number))
            one.send_append("t", number)
            if number == 2:
                self.made["bc"] = stage.send_put_route(RULES["bc"])
            if number == 5:
                self.gone = RecordedReply()
                delete_route(one.shard.state, "a>d", self.gone)
            if number == 6:
                one.send_put("e", cap_records=0)
            if number % 3 == 0:
                one.shard.start_checkpoint()
            if number % 2:
                one.turn()
                one.turn()
            else:
                stage.pass_time(60)
        stage.pass_time(2000)
        one.close()

    def judge(self, disk: MemoryDisk, *, is_kept: bool) -> None:
        """`is_kept` says that what was acked has to be there."""
        clock = ManualClock(2_000_000_000_000, 9000.0)
        stage = RouteShards(disk=disk, clock=clock, **SETTINGS)
        if (older := without_newest_snapshot(disk)) is not None:
            assert _known(RouteShards(disk=older, clock=clock, **SETTINGS)) == _known(stage)
        routes = stage.shards[0].shard.state.routes
        for name, reply in self.made.items():
            if reply.has_answer and reply.code is None and name != "ad":
                assert RULES[name].name in routes
        if self.gone is not None and self.gone.has_answer:
            assert "a>d" not in routes
        if "a" not in stage.shards[0].shard.state.topics:
            assert not self.writes
            return
        stage.pass_time(3000)
        source = stage.data("a")
        assert source == list(range(1, len(source) + 1))
        assert not is_kept or len(source) >= sum(
            reply.has_answer and reply.code is None for reply in self.writes
        )
        for rule, dest in (("a>b", "b"), ("b>c", "c")):
            assert rule not in routes or stage.data(dest) == source
        copied = stage.data("d") if "d" in stage.shards[0].shard.state.topics else []
        assert copied == source[: len(copied)]
        if "t>e" in routes:
            _check_trimmed(stage)


def _check_trimmed(stage: RouteShards) -> None:
    """The copies are in order, and each missing range was reported."""
    copies: list[Any] = []
    cursor, is_at_end = 0, False
    while not is_at_end:
        answer = stage.shards[0].read("e", cursor)
        if answer.tombstone is not None:
            copies += [None] * answer.tombstone.missed_estimate
        copies += [int(record.data) for record in answer.records]
        cursor, is_at_end = answer.next_from_seq, answer.caught_up
    values = [value for value in copies if value is not None]
    assert values == sorted(set(values))
    for before, after in pairwise(copies):
        assert before is None or after is None or after == before + 1, f"an unreported gap: {copies}"


def _known(stage: RouteShards) -> Any:
    one = stage.shards[0]
    state = one.shard.state
    rules = {
        name: (forward.rule, forward.source_epoch, forward.source_head, forward.forwarded_total)
        for name, forward in state.routes.items()
    }
    return rules, {name: stage.data(name) for name in state.topics}


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_the_power_goes_in_each_of_its_calls(durability: str) -> None:
    calls = sweep_power_cuts(lambda disk: Script(disk, durability), 2, is_kept=True)
    assert calls > 50


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_the_process_is_killed_in_each_of_its_calls(durability: str, torn: bool) -> None:
    assert sweep_kills(lambda disk: Script(disk, durability), torn=torn) > 50
