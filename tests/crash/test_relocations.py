"""A relocation while its source, its target or the supervisor is killed, or the power fails, at every call.

Whatever is lost when: after the restart one shard has the topic and serves it, with everything in it, and
nothing of it is anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from shared.contract.names import topic_id
from shared.ipc.placement import shard_of
from tests.harness.machine.faults import MachineGoneError
from tests.harness.shard.one_shard import record
from tests.harness.shard.topic_view import topic_view
from tests.harness.stage.relocation_shards import BOSS, SOURCE, TARGET, RelocationShards
from topicsd.service.shards.relocation import Relocated

PROCESSES = {"source": SOURCE, "target": TARGET, "supervisor": BOSS}

pytestmark = pytest.mark.usefixtures("quiet_log")


def _name(shard: int) -> str:
    return next(name for number in range(99) if shard_of(topic_id(name := f"t{number}"), 2) == shard)


HOME, AWAY = _name(SOURCE), _name(TARGET)


def _filled(name: str) -> RelocationShards:
    stage = RelocationShards(segment_max_events=5)
    one = stage.shards[SOURCE]
    one.put(name, type="queue", durability="fsync", leases_durable=True)
    for number in range(12):
        one.append(name, record(number, tag="xy"[number % 2]), idempotency_key=f"k{number}")
        if number == 6:
            one.checkpoint()
    one.claimed(name, "w", 3, lease_ms=3_600_000)
    one.ack(name, "w", 2)
    one.append("other", 1)
    stage.run(100)
    return stage


def _check(stage: RelocationShards, name: str, before: dict[str, Any]) -> None:
    owner = stage.owner(name)
    assert topic_view(stage.shards[owner], name) == before
    assert stage.shards[owner].append(name, 1).first_seq == before["head"] + 1
    if owner == SOURCE:
        assert isinstance(stage.move(name), Relocated)
        assert stage.owner(name) == TARGET
    for one in stage.shards:
        for _ in range(4):
            one.append("other", 1)
            one.checkpoint()
    stage.run(100)
    assert stage.shards[TARGET].state(name).head_seq == before["head"] + 1
    folder = f"shards/00/topics/{topic_id(name):016x}-"
    files = [path for path in stage.disk.all_files() if "/topics/" in path]
    left = [path for path in files if folder in path or "bundle.bin" in path]
    assert left == []
    is_by_rule = shard_of(topic_id(name), 2) == TARGET
    stage.placements[TARGET].refresh()
    if not is_by_rule:
        assert stage.placements[TARGET].current.exceptions == {name: TARGET}


@pytest.mark.parametrize("name", [HOME, AWAY], ids=["away", "home"])
def test_a_relocation_moves_everything(name: str) -> None:
    stage = _filled(name) if name == HOME else _at_source()
    before = topic_view(stage.shards[SOURCE], name)
    assert isinstance(stage.move(name), Relocated)
    assert stage.owner(name) == TARGET
    _check(stage, name, before)
    if name == AWAY:
        assert stage.placements[TARGET].current.exceptions == {}


def _at_source() -> RelocationShards:
    """Return shards of which the source has a topic that the rule gives to the target."""
    stage = _filled(HOME)
    one = stage.shards[TARGET]
    one.append(AWAY, 1, 2, 3)
    stage.run(100)
    assert isinstance(stage.move(AWAY, TARGET), Relocated)
    assert stage.owner(AWAY) == SOURCE
    stage.run(1000)
    return stage


MAKE: dict[str, Callable[[], RelocationShards]] = {HOME: partial(_filled, HOME), AWAY: _at_source}


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("name", MAKE, ids=["away", "home"])
def test_one_shard_has_the_topic_when_a_process_is_killed_at_every_call(name: str, process: str) -> None:
    number = PROCESSES[process]
    stage = MAKE[name]()
    calls_before = stage.processes[number].calls
    stage.move(name)
    calls = stage.processes[number].calls - calls_before
    assert calls > (5 if number == BOSS else 20)
    for after in range(calls):
        print(process, "killed after", after)
        stage = MAKE[name]()
        before = topic_view(stage.shards[SOURCE], name)
        stage.processes[number].kill_after(after)
        stage.start(name)
        with pytest.raises(MachineGoneError):
            stage.run()
        stage.recover()
        _check(stage, name, before)


@pytest.mark.parametrize("process", PROCESSES)
def test_one_shard_has_the_topic_when_a_process_is_killed_in_every_turn(process: str) -> None:
    """Between disk calls too: while a message is on its way."""
    number, turns = PROCESSES[process], 0
    is_over = False
    while not is_over:
        print(process, "killed in turn", turns)
        stage = _filled(HOME)
        before = topic_view(stage.shards[SOURCE], HOME)
        outcomes = stage.start(HOME)
        stage.turn(turns)
        is_over = bool(outcomes)
        stage.processes[number].is_dead = True
        stage.recover()
        _check(stage, HOME, before)
        turns += 1
    assert turns > 30


def test_one_shard_has_the_topic_when_the_power_fails_at_every_call() -> None:
    stage = _filled(HOME)
    before_move = stage.disk.calls
    stage.move(HOME)
    calls = stage.disk.calls - before_move
    assert calls > 50
    for after in range(calls):
        print("power cut after", after)
        stage = _filled(HOME)
        before = topic_view(stage.shards[SOURCE], HOME)
        stage.disk.cut_power_after(after)
        stage.start(HOME)
        with pytest.raises(MachineGoneError):
            stage.run()
        stage.recover(seed=after)
        _check(stage, HOME, before)
