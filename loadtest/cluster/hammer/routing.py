"""Which nodes a partition is sent to: its owner set, and the choice within the set.

Owner sets are computed once for a run, by rendezvous over partition, node and seed, and do not change in it.
All partitions pass over an owner that is down: the rest of the owner set takes the requests, and no other
node does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from loadtest.cluster.scenario import Scenario
from topicsd.broker.rendezvous import ranked

Partition = tuple[str, int]
OwnerSets = Mapping[Partition, Sequence[str]]


def owner_sets(
    partitions: Iterable[Partition], nodes: Sequence[str], owners: int, seed: int
) -> dict[Partition, tuple[str, ...]]:
    """Return the owners of each partition, best first.

    >>> owner_sets([("orders", 0), ("orders", 1)], ["a", "b", "c"], 2, seed=7)
    {('orders', 0): ('a', 'c'), ('orders', 1): ('c', 'b')}
    """
    weights = dict.fromkeys(nodes, 1.0)
    return {
        (topic, partition): tuple(ranked(f"{seed}:{topic}:{partition}", weights)[:owners])
        for topic, partition in partitions
    }


def manifest(scenario: Scenario) -> dict[str, Any]:
    """Return the document of `routing-manifest.json`."""
    sets = owner_sets(scenario.topic_partitions, scenario.node_names, scenario.owners, scenario.seed)
    return {
        "seed": scenario.seed,
        "selection": scenario.selection,
        "nodes": scenario.node_names,
        "partitions": [
            {"topic": topic, "partition": partition, "owners": list(owners)}
            for (topic, partition), owners in sets.items()
        ],
    }


def manifest_owners(document: Mapping[str, Any]) -> dict[Partition, tuple[str, ...]]:
    return {(entry["topic"], entry["partition"]): tuple(entry["owners"]) for entry in document["partitions"]}


def reader_sets(owners: OwnerSets, nodes: Sequence[str], readers: Literal["owners", "others"]) -> OwnerSets:
    """Return the nodes that each partition is read at."""
    if readers == "owners":
        return owners
    return {
        partition: tuple(node for node in nodes if node not in its_owners)
        for partition, its_owners in owners.items()
    }


class Router:
    """Chooses a node for each request, among the owners that are up.

    `on_event` gets what `remap-events.jsonl` records, without the time.
    """

    def __init__(
        self,
        sets: OwnerSets,
        selection: Literal["round_robin", "least_inflight"],
        on_event: Callable[[dict[str, Any]], object],
    ) -> None:
        self._sets = sets
        self._is_least_inflight = selection == "least_inflight"
        self._on_event = on_event
        self._turns = dict.fromkeys(sets, 0)
        self._inflight = {node: 0 for owners in sets.values() for node in owners}
        self.down: set[str] = set()

    @property
    def nodes(self) -> list[str]:
        """The nodes that own a partition."""
        return list(self._inflight)

    def choose(self, partition: Partition) -> str | None:
        """Return the node for the next request; None when all owners are down."""
        owners = self._sets[partition]
        alive = [node for node in owners if node not in self.down] if self.down else owners
        if not alive:
            return None
        turn = self._turns[partition]
        self._turns[partition] = turn + 1
        if not self._is_least_inflight:
            return alive[turn % len(alive)]
        # Equal ones take turns, since `min` returns the first.
        start = turn % len(alive)
        return min((*alive[start:], *alive[:start]), key=self._inflight.__getitem__)

    def first_alive(self, partition: Partition) -> str | None:
        """Return the best owner that is up: readers stay there, where the records are in memory."""
        return next((node for node in self._sets[partition] if node not in self.down), None)

    def on_start(self, node: str) -> None:
        self._inflight[node] += 1

    def on_end(self, node: str) -> None:
        self._inflight[node] -= 1

    def mark_down(self, node: str, reason: str) -> None:
        """Pass over a node; its partitions go to the rest of their owner sets."""
        if node in self.down:
            return
        self.down.add(node)
        self._on_event({"event": "down", "node": node, "reason": reason, "partitions": self._moves(node)})

    def mark_up(self, node: str) -> None:
        if node in self.down:
            self.down.remove(node)
            self._on_event({"event": "up", "node": node, "partitions": self._moves(node)})

    def _moves(self, node: str) -> list[dict[str, Any]]:
        """Return the partitions that a change of a node concerns, with the owners that are up now."""
        return [
            {"topic": topic, "partition": number, "owners": [one for one in owners if one not in self.down]}
            for (topic, number), owners in self._sets.items()
            if node in owners
        ]
