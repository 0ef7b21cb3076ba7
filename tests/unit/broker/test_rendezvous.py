"""Weighted rendezvous hashing: shares by weight, and minimal movement."""

from __future__ import annotations

from collections import Counter

from topicsd.broker.rendezvous import home_of, ranked

KEYS = [f"topic-{number}" for number in range(20_000)]
NODES = {"a": 1.0, "b": 1.0, "c": 2.0, "d": 4.0}


def homes(nodes: dict[str, float]) -> dict[str, str | None]:
    return {key: home_of(key, nodes) for key in KEYS}


def test_each_node_has_its_share_of_the_weights() -> None:
    counts = Counter(homes(NODES).values())
    for node, weight in NODES.items():
        expected = len(KEYS) * weight / sum(NODES.values())
        assert abs(counts[node] - expected) < 0.06 * expected


def test_a_node_that_joins_only_takes_keys_and_its_share() -> None:
    before, after = homes(NODES), homes({**NODES, "e": 2.0})
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} == {"e"}
    assert abs(len(moved) - len(KEYS) * 0.2) < len(KEYS) * 0.02


def test_only_the_keys_of_a_node_that_leaves_move() -> None:
    left = {name: weight for name, weight in NODES.items() if name != "c"}
    before, after = homes(NODES), homes(left)
    assert {before[key] for key in KEYS if before[key] != after[key]} == {"c"}
    assert set(after.values()) == set(left)


def test_a_weight_that_grows_moves_keys_to_its_node_alone() -> None:
    before, after = homes(NODES), homes({**NODES, "b": 3.0})
    moved = [key for key in KEYS if before[key] != after[key]]
    assert moved
    assert {after[key] for key in moved} == {"b"}
    back = homes(NODES)
    assert back == before


def test_the_next_in_the_ranking_takes_over() -> None:
    for key in KEYS[:500]:
        order = ranked(key, NODES)
        assert sorted(order) == sorted(NODES)
        assert order[0] == home_of(key, NODES)
        assert home_of(key, {name: NODES[name] for name in order[1:]}) == order[1]


def test_the_order_of_the_nodes_does_not_matter() -> None:
    turned = dict(reversed(NODES.items()))
    assert all(home_of(key, NODES) == home_of(key, turned) for key in KEYS[:1000])


def test_without_a_weight_there_is_no_home() -> None:
    assert home_of("a", {}) is None
    assert home_of("a", {"n": 0.0}) is None
    assert home_of("a", {"n": 0.0, "m": 0.1}) == "m"
