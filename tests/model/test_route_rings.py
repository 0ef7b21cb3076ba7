"""Rings of routes over three shards that restart at any time: each record makes every allowed hop once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from shared.contract.route_rule import RouteRule
from tests.harness.machine.faults import MachineGoneError
from tests.harness.shard.one_shard import OneShard
from tests.harness.stage.route_shards import RouteShards
from topicsd.engine.routes.route import RoutePut
from topicsd.engine.routes.stamp import HOPS_MAX

SHARDS = 3

pytestmark = pytest.mark.usefixtures("quiet_log")


class Ring:
    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.stage = RouteShards(SHARDS, wal_file_bytes=1 << 16, segment_max_events=rng.choice((5, 1000)))
        self.topics = [f"t{number}" for number in rng.sample(range(50), rng.randint(2, 6))]
        for topic in self.topics:
            self.stage.owner(topic).put(topic, durability="fsync")
        for at, topic in enumerate(self.topics):
            source = self.topics[at - 1]
            rule = RouteRule(topic, source, topic, may_cycle=True, is_exactly_once=rng.random() < 0.3)
            reply = self.stage.send_put_route(rule)
            self.stage.pass_time(100)
            assert isinstance(reply.answer, RoutePut)
        self.origins: dict[int, int] = {}
        """The index in the ring of the topic that each value was written to."""

    def run(self, steps: int) -> None:
        actions = (
            [self._append] * 4
            + [self._turns] * 4
            + [self._pass_time, self._checkpoint, self._restart, self._schedule_crash]
        )
        for _ in range(steps):
            self._run_and_restart(self.rng.choice(actions))
        for one in self.stage.shards:
            one.disk.kill_process_after(1 << 60)
        self.stage.reconnect()
        for _ in range(10):
            self.stage.pass_time(1500)

    def _run_and_restart(self, action: Callable[[], object]) -> None:
        try:
            action()
        except MachineGoneError:
            for number, one in enumerate(self.stage.shards):
                if one.disk.is_gone:
                    self.stage.end(number, self.rng.choice((OneShard.kill, OneShard.cut_power)))

    def _append(self) -> None:
        at = self.rng.randrange(len(self.topics))
        values = [len(self.origins) + one for one in range(self.rng.choice((1, 1, 7)))]
        self.origins |= dict.fromkeys(values, at)
        self.stage.owner(self.topics[at]).send_append(self.topics[at], *values)

    def _turns(self) -> None:
        for _ in range(self.rng.randint(1, 8)):
            self.rng.choice(self.stage.shards).turn()

    def _pass_time(self) -> None:
        self.stage.pass_time(self.rng.choice((1, 60, 500)))

    def _checkpoint(self) -> None:
        self.rng.choice(self.stage.shards).shard.start_checkpoint()

    def _restart(self) -> None:
        how = self.rng.choice((OneShard.restart, OneShard.kill, OneShard.reboot, OneShard.cut_power))
        self.stage.end(self.rng.randrange(SHARDS), how)

    def _schedule_crash(self) -> None:
        disk = self.rng.choice(self.stage.shards).disk
        (disk.kill_process_after if self.rng.random() < 0.5 else disk.cut_power_after)(
            self.rng.randint(0, 12)
        )

    def check(self) -> None:
        values_by_topic = [Counter(self.stage.data(topic)) for topic in self.topics]
        for value, origin in self.origins.items():
            expected = Counter((origin + hops) % len(self.topics) for hops in range(HOPS_MAX + 1))
            if not values_by_topic[origin][value]:
                expected.clear()  # The write failed.
            counts = {at: of_topic[value] for at, of_topic in enumerate(values_by_topic) if of_topic[value]}
            assert counts == expected, f"{value}, written to {self.topics[origin]} of {self.topics}"
        assert sum(map(len, values_by_topic)) > 0


@pytest.mark.parametrize("seed", range(15))
def test_a_record_makes_every_allowed_hop_once(seed: int) -> None:
    print("seed", seed)
    ring = Ring(seed)
    ring.run(60)
    ring.check()


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10_000, 10_200))
def test_a_record_makes_every_allowed_hop_once_in_long_runs(seed: int) -> None:
    print("seed", seed)
    ring = Ring(seed)
    ring.run(300)
    ring.check()
