from __future__ import annotations

from typing import Any, Literal

import pytest

from loadtest.cluster.hammer.routing import (
    Partition,
    Router,
    manifest,
    manifest_owners,
    owner_sets,
    reader_sets,
)
from loadtest.cluster.scenario import make_scenario

NODES = [f"node-{number}" for number in range(5)]
PARTITIONS: list[Partition] = [("load-0", number) for number in range(200)]
P: Partition = ("load-0", 0)
Selection = Literal["round_robin", "least_inflight"]


def router(selection: Selection = "round_robin") -> tuple[Router, list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    return Router({P: ("a", "b", "c"), ("load-0", 1): ("b",)}, selection, events.append), events


def test_owner_sets_are_the_same_for_a_seed_and_others_for_another_one() -> None:
    sets = owner_sets(PARTITIONS, NODES, 2, seed=1)
    assert sets == owner_sets(PARTITIONS, NODES, 2, seed=1)
    assert sets != owner_sets(PARTITIONS, NODES, 2, seed=2)
    assert all(len(set(owners)) == 2 for owners in sets.values())


def test_owner_sets_are_spread_over_all_nodes() -> None:
    owned = [owners[0] for owners in owner_sets(PARTITIONS, NODES, 1, seed=1).values()]
    assert all(20 <= owned.count(node) <= 70 for node in NODES)


def test_a_partition_leaves_only_a_node_that_is_gone() -> None:
    before = owner_sets(PARTITIONS, NODES, 1, seed=1)
    after = owner_sets(PARTITIONS, NODES[:-1], 1, seed=1)
    assert all(after[one] == owners for one, owners in before.items() if owners[0] != NODES[-1])


def test_the_manifest_has_the_owner_sets_of_the_clients() -> None:
    scenario = make_scenario({"nodes": 3, "owners": 2, "topics": 2, "partitions": 3, "seed": 9})
    document = manifest(scenario)
    assert document["seed"] == 9
    expected = owner_sets(scenario.topic_partitions, scenario.node_names, 2, 9)
    assert manifest_owners(document) == expected
    assert len(expected) == 6


def test_readers_at_others_read_where_nothing_is_written() -> None:
    owners = owner_sets(PARTITIONS, NODES, 2, seed=1)
    others = reader_sets(owners, NODES, "others")
    assert reader_sets(owners, NODES, "owners") is owners
    for partition in PARTITIONS:
        assert sorted((*owners[partition], *others[partition])) == NODES


def test_round_robin_takes_each_owner_in_turn() -> None:
    chosen, _ = router()
    assert [chosen.choose(P) for _ in range(4)] == ["a", "b", "c", "a"]


def test_least_inflight_takes_the_owner_with_the_fewest_requests() -> None:
    chosen, _ = router("least_inflight")
    for node in ("a", "a", "b"):
        chosen.on_start(node)
    assert chosen.choose(P) == "c"
    for node in ("c", "c"):
        chosen.on_start(node)
    assert chosen.choose(P) == "b"
    chosen.on_end("a")
    chosen.on_end("a")
    assert chosen.choose(P) == "a"


def test_owners_with_equally_many_requests_take_turns() -> None:
    chosen, _ = router("least_inflight")
    assert [chosen.choose(P) for _ in range(3)] == ["a", "b", "c"]


@pytest.mark.parametrize("selection", ["round_robin", "least_inflight"])
def test_a_node_that_is_down_is_replaced_inside_the_owner_set(selection: Selection) -> None:
    chosen, events = router(selection)
    chosen.mark_down("b", "ConnectionRefusedError")
    assert {chosen.choose(P) for _ in range(6)} == {"a", "c"}
    assert chosen.choose(("load-0", 1)) is None
    assert chosen.first_alive(("load-0", 1)) is None
    chosen.mark_up("b")
    assert {chosen.choose(P) for _ in range(6)} == {"a", "b", "c"}
    down, up = events
    assert (down["event"], down["node"], down["reason"]) == ("down", "b", "ConnectionRefusedError")
    assert [entry["owners"] for entry in down["partitions"]] == [["a", "c"], []]
    assert (up["event"], up["node"]) == ("up", "b")
    assert [entry["owners"] for entry in up["partitions"]] == [["a", "b", "c"], ["b"]]


def test_a_node_that_is_down_already_is_recorded_once() -> None:
    chosen, events = router()
    chosen.mark_down("a", "timeout")
    chosen.mark_down("a", "timeout")
    chosen.mark_up("c")
    assert len(events) == 1
