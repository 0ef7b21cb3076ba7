"""A chain of routes over three shards, one of which ends or fails in each of its disk calls.

The others keep running. Whatever that shard had copied or acked by then: once it is back, every topic holds
the records of the one before it, each once and in order, and each acked record is in all of them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise

import pytest

from shared.contract.route_rule import RouteRule
from tests.harness.machine.faults import Fault, MachineGoneError
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.one_shard import OneShard, RecordedReply, record
from tests.harness.stage.route_shards import RouteShards
from topicsd.engine.routes.route import RoutePut

WRITES = 8
SETTINGS = {"wal_file_bytes": 8192, "segment_max_events": 3}

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet_log")]


class Life:
    """The chain a, b, c, d goes over the shards x, y, z and back to x; the last rule copies exactly once."""

    def __init__(self, durability: str, number: int, arm: Callable[[MemoryDisk], object], how: str) -> None:
        self.stage = RouteShards(3, **SETTINGS)
        self.topics = _chain(self.stage)
        self.how = how
        self.ended = False
        self.writes: list[RecordedReply] = []
        self.rules = {
            f"{source}>{dest}": RouteRule(
                f"{source}>{dest}", source, dest, is_from_start=True, is_exactly_once=dest == self.topics[-1]
            )
            for source, dest in pairwise(self.topics)
        }
        for topic in self.topics:
            self.stage.owner(topic).put(topic, durability=durability)
        fault = arm(self.stage.shards[number].disk)
        self._live()
        if isinstance(fault, Fault):
            self.ended = fault.fired > 0
            if self.stage.shards[number].failures:
                # As a worker does.
                self.stage.end(number, OneShard.kill)

    def _live(self) -> None:
        source = self.stage.owner(self.topics[0])
        for name in self.rules:
            self._survive(lambda name=name: self._make(name))  # type: ignore[misc]
        for number in range(1, WRITES + 1):
            source = self.stage.owner(self.topics[0])
            self._survive(lambda number=number, source=source: self._write(source, number))  # type: ignore[misc]
            if number % 3 == 0:
                for one in self.stage.shards:
                    one.shard.start_checkpoint()
            self._survive(lambda: self.stage.pass_time(60))
        self._survive(lambda: self.stage.pass_time(2000))

    def _make(self, name: str) -> None:
        self.stage.send_put_route(self.rules[name])
        self.stage.settle()

    def _write(self, source: OneShard, number: int) -> None:
        self.writes.append(source.send_append(self.topics[0], record(number, meta={"n": number})))
        self.stage.settle()

    def _survive(self, step: Callable[[], object]) -> None:
        try:
            step()
        except MachineGoneError:
            self.ended = True
            [number] = [number for number, one in enumerate(self.stage.shards) if one.disk.is_gone]
            how = OneShard.kill if self.how == "kill" else lambda one: one.cut_power(seed=len(self.writes))
            self.stage.end(number, how)

    def judge(self) -> None:
        stage = self.stage
        for rule in self.rules.values():
            if stage.route(rule.name) is None:
                # It was on its way.
                assert isinstance(
                    stage.put_route(rule.name, rule.source, rule.dest, is_from_start=True), RoutePut
                )
        for _ in range(4):
            stage.pass_time(1500)
        written = stage.data(self.topics[0])
        assert written == sorted(set(written))
        acked = {
            number for number, reply in enumerate(self.writes, 1) if reply.has_answer and reply.code is None
        }
        assert acked <= set(written)
        for topic in self.topics[1:]:
            assert stage.data(topic) == written, f"{topic} of {self.topics}"
            assert self.how != "kill" or stage.owner(topic).read(topic).tombstone is None


def _chain(stage: RouteShards) -> list[str]:
    """Topics of the shards 0, 1, 2 and 0."""
    names = [f"t{number}" for number in range(40)]
    topics: list[str] = []
    for shard in (0, 1, 2, 0):
        topics.append(next(name for name in names if stage.number_of(name) == shard and name not in topics))
    return topics


def sweep(durability: str, number: int, arm: Callable[[MemoryDisk, int], object], how: str) -> int:
    for calls in range(1000):
        life = Life(durability, number, lambda disk: arm(disk, calls), how)  # noqa: B023
        life.judge()
        if not life.ended:
            return calls
    raise AssertionError("the script has no end")


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_one_shard_is_killed_in_each_of_its_calls(durability: str, number: int) -> None:
    def arm(disk: MemoryDisk, calls: int) -> None:
        disk.kill_process_after(calls, torn=calls % 2 == 0)

    assert sweep(durability, number, arm, "kill") > 20


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_power_of_one_shard_goes_in_each_of_its_calls(number: int) -> None:
    assert sweep("fsync", number, MemoryDisk.cut_power_after, "cut") > 20


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_one_shard_fails_in_each_of_its_calls(error: int, number: int) -> None:
    assert sweep("fsync", number, lambda disk, calls: disk.fail(None, calls + 1, error=error), "fail") > 20
