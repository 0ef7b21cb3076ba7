"""Faults of nodes and services at random times, each of which ends after a while, except a lost disk.

A run draws some kinds of faults and leaves out the others: a rare order of events often needs many faults of
one kind and none of another, which would hide it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from tests.harness.cluster.machine import Cluster, Machine
from tests.harness.cluster.network import Service
from tests.harness.machine.faults import PowerCut, ProcessKilled

FAULT_MS: Final = 30_000
STOP_MS: Final = 250_000
"""Longer than any timeout and any late request."""


class Nemesis:
    def __init__(self, cluster: Cluster, machines: Sequence[Machine], losses_max: int) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._machines = list(machines)
        self._losses_left = losses_max
        kinds = sorted({kind for kind, _ in self._faults(self._machines[0])})
        self._kinds = set(self._world.rng.sample(kinds, self._world.rng.randint(1, len(kinds))))
        self._pause_ms = self._world.rng.choice((4_000, 15_000, 60_000))
        self.is_ending = False
        self.done: Counter[str] = Counter()

    def start(self) -> None:
        self._world.after(self._world.rng.random() * self._pause_ms, self._next)

    def _next(self) -> None:
        if self.is_ending:
            return
        rng = self._world.rng
        self._world.after(rng.random() * self._pause_ms, self._next)
        faults = [one for one in self._faults(rng.choice(self._machines)) if one[0] in self._kinds]
        kind, act = rng.choice(faults)
        self.done[kind] += 1
        act()

    def _faults(self, machine: Machine) -> list[tuple[str, Callable[[], object]]]:
        faults: list[tuple[str, Callable[[], object]]] = [
            ("kill", machine.kill),
            ("power cut", machine.cut_power),
            ("end in a request", partial(self._end_in_request, machine)),
            ("end in a write", partial(self._end_in_write, machine)),
            ("stop", partial(self._stop, machine)),
            ("partition from both", partial(self._cut_both, machine)),
            ("conflicts", self._conflicts),
            ("lost node", partial(self._lose, machine)),
        ]
        for service in self._services:
            faults += [
                (f"{service.name} away", partial(self._away, service)),
                (f"{service.name} loses requests", partial(self._loss, service)),
                (f"{service.name} slow", partial(self._slow, service)),
                (f"partition from {service.name}", partial(self._cut, machine, service)),
            ]
        return faults

    @property
    def _services(self) -> tuple[Service, Service]:
        return self._cluster.store.service, self._cluster.catalog.service

    def _later(self, ms_max: float, act: Callable[[], object]) -> None:
        self._world.after(self._world.rng.random() * ms_max, act)

    def _end_in_request(self, machine: Machine) -> None:
        """End the server just before its n-th request from now, or just before an answer arrives."""
        rng = self._world.rng
        error = PowerCut if rng.random() < 0.3 else ProcessKilled
        self._cluster.network.end_before(machine.name, rng.randint(1, 12), error)

    def _end_in_write(self, machine: Machine) -> None:
        """End the server or the machine in one of its next changes of the disk."""
        rng = self._world.rng
        machine.end_in_write(rng.randint(1, 60), rng.random() < 0.6)

    def _stop(self, machine: Machine) -> None:
        machine.stop()
        self._later(STOP_MS, machine.resume)

    def _away(self, service: Service) -> None:
        service.is_away = True
        self._later(FAULT_MS, partial(setattr, service, "is_away", False))

    def _loss(self, service: Service) -> None:
        service.loss = self._world.rng.random() * 0.5
        self._later(FAULT_MS, partial(setattr, service, "loss", 0.0))

    def _slow(self, service: Service) -> None:
        service.ms_max = self._world.rng.choice((500.0, 4_000.0, 15_000.0))
        self._later(FAULT_MS, partial(setattr, service, "ms_max", 20.0))

    def _cut(self, machine: Machine, service: Service) -> None:
        service.cut_from.add(machine.name)
        self._later(FAULT_MS, partial(service.cut_from.discard, machine.name))

    def _cut_both(self, machine: Machine) -> None:
        for service in self._services:
            self._cut(machine, service)

    def _conflicts(self) -> None:
        self._cluster.store.conflicts = 0.3
        self._later(FAULT_MS, partial(setattr, self._cluster.store, "conflicts", 0.0))

    def _lose(self, machine: Machine) -> None:
        if not self._losses_left or self._world.rng.random() < 0.7:
            return
        self._losses_left -= 1
        self._machines.remove(machine)
        machine.lose()

    def end(self) -> None:
        """End all faults; lost machines stay lost."""
        self.is_ending = True
        self._cluster.network.clear_endings()
        self._cluster.store.conflicts = 0.0
        for service in self._services:
            service.heal()
        for machine in self._machines:
            machine.clear_endings()
            machine.resume()
