"""The graph of routes: which routes exclude each other, and changes by shards and clients."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from router.control.route_graph import RouteGraph
from shared.contract.errors import Refusal
from shared.contract.route_rule import RouteRule
from shared.ipc.placement import Placement
from tests.harness.server.whole_server import name_on

SHARDS = 3


def rule(name: str, source: str, dest: str, **options: Any) -> RouteRule:
    return RouteRule(name, source, dest, **options)


def graph_of(*edges: str, bound: int = 0) -> RouteGraph:
    """Return a graph with confirmed routes, each named and written as `a>b`."""
    graph = RouteGraph(Placement(SHARDS), bound)
    for edge in edges:
        add(graph, rule(edge, *edge.split(">"), may_cycle=True))
    return graph


def add(graph: RouteGraph, one: RouteRule) -> None:
    graph.reserve(one)
    graph.confirm(one)


def refused(graph: RouteGraph, one: RouteRule) -> Refusal:
    refusal = graph.refusal(one)
    assert refusal is not None
    return refusal


def test_a_second_route_into_a_destination_is_refused_and_the_first_is_named() -> None:
    graph = graph_of("a>b")
    for source in ("c", "a"):
        refusal = refused(graph, rule("r", source, "b"))
        assert (refusal.code, refusal.detail) == (
            "topic_exists_incompatible",
            {"reason": "router_dest_fan_in", "router": "a>b"},
        )
    assert graph.refusal(rule("r", "b", "c")) is None
    assert graph.refusal(rule("r", "a", "c")) is None


@pytest.mark.parametrize(("source", "dest"), [("a", "c"), ("c", "b"), ("b", "a")])
def test_the_topics_of_a_route_cannot_change(source: str, dest: str) -> None:
    refusal = refused(graph_of("a>b"), rule("a>b", source, dest))
    assert refusal.code == "topic_exists_incompatible"
    assert refusal.detail == {"reason": "router_repoint_forbidden", "router": "a>b"}


def test_the_options_of_a_route_may_change() -> None:
    graph = graph_of("a>b", bound=1)
    changed = rule("a>b", "a", "b", tags=["tag", "Eq", "x"])
    assert graph.refusal(changed) is None
    add(graph, changed)
    assert (graph.find("a>b"), len(graph)) == (changed, 1)


@pytest.mark.parametrize(
    ("edges", "closing", "cycle"),
    [
        (["a>b"], "b>a", ["a", "b", "a"]),
        (["a>b", "b>c", "c>d"], "d>a", ["a", "b", "c", "d", "a"]),
        (["a>b", "a>c", "c>d"], "d>a", ["a", "c", "d", "a"]),
    ],
)
def test_a_route_that_would_close_a_cycle_is_refused_with_the_cycle(
    edges: list[str], closing: str, cycle: list[str]
) -> None:
    graph = graph_of(*edges)
    refusal = refused(graph, rule("r", *closing.split(">")))
    assert (refusal.code, refusal.detail) == ("router_cycle", {"cycle": cycle})
    assert graph.refusal(rule("r", *closing.split(">"), may_cycle=True)) is None


def test_a_route_out_of_an_allowed_cycle_is_not_refused() -> None:
    graph = graph_of("a>b", "b>a")
    assert graph.refusal(rule("r", "a", "c")) is None
    assert graph.refusal(rule("s", "c", "d")) is None


def test_a_route_of_a_cycle_can_be_put_again_while_another_one_allows_it() -> None:
    graph = graph_of()
    for one in (rule("ab", "a", "b"), rule("bc", "b", "c"), rule("ca", "c", "a", may_cycle=True)):
        add(graph, one)
    for name in ("ab", "bc"):
        assert graph.refusal(rule(name, *name)) is None
    assert refused(graph, rule("ca", "c", "a")).detail == {"cycle": ["a", "b", "c", "a"]}
    add(graph, rule("ab", "a", "b", may_cycle=True))
    add(graph, rule("ca", "c", "a"))
    assert refused(graph, rule("ab", "a", "b")).detail == {"cycle": ["b", "c", "a", "b"]}


def test_the_cap_counts_reserved_routes() -> None:
    graph = graph_of("a>b", bound=2)
    graph.reserve(rule("r", "b", "c"))
    refusal = refused(graph, rule("s", "b", "d"))
    assert (refusal.code, refusal.detail) == ("throttled", {"limit": "max_routers", "max": 2})
    assert refusal.retry_after_ms is not None
    graph.release("r")
    assert graph.refusal(rule("s", "b", "d")) is None


def test_only_one_of_two_conflicting_routes_is_reserved() -> None:
    graph = graph_of()
    graph.reserve(rule("r", "a", "b"))
    assert refused(graph, rule("s", "c", "b")).detail == {"reason": "router_dest_fan_in", "router": "r"}
    assert refused(graph, rule("s", "b", "a")).code == "router_cycle"
    graph.release("r")
    assert graph.refusal(rule("s", "b", "a")) is None


def test_a_release_restores_the_route_before_it() -> None:
    graph = graph_of("a>b")
    before = graph.find("a>b")
    graph.reserve(rule("a>b", "a", "b", keeps_tag=False))
    graph.release("a>b")
    assert graph.find("a>b") is before
    assert graph.touching("a") == graph.touching("b") == [before]


def test_the_routes_of_a_topic_are_those_from_it_and_into_it() -> None:
    graph = graph_of("a>b", "b>c", "b>d", "x>y")
    assert [one.name for one in graph.touching("b")] == ["a>b", "b>c", "b>d"]
    graph.drop("b>c")
    graph.drop("a>b")
    graph.drop("absent")
    assert [one.name for one in graph.touching("b")] == ["b>d"]
    assert graph.touching("a") == []


def test_the_routes_a_shard_reports_replace_only_those_known_of_it() -> None:
    here, there = name_on(0, SHARDS, "here"), name_on(1, SHARDS, "there")
    graph = RouteGraph(Placement(SHARDS), 0)
    for one in (rule("old", "s", here), rule("other", "s", there)):
        add(graph, one)
    new = rule("new", "t", here)
    graph.learn(0, [new])
    assert (graph.find("old"), graph.find("new")) == (None, new)
    assert graph.find("other") is not None
    assert [one.name for one in graph.touching("s")] == ["other"]
    graph.learn(0, [])
    assert len(graph) == 1


def test_a_reserved_route_is_not_replaced_by_the_report_of_a_shard() -> None:
    here = name_on(0, SHARDS, "here")
    graph = RouteGraph(Placement(SHARDS), 0)
    reserved = rule("r", "s", here)
    graph.reserve(reserved)
    graph.learn(0, [])
    graph.learn(0, [rule("r", "s", here, keeps_node=False)])
    graph.drop("r")
    assert graph.find("r") is reserved
    graph.confirm(reserved)
    graph.learn(0, [])
    assert graph.find("r") is None


@pytest.mark.parametrize("seed", range(30))
def test_no_topic_has_two_routes_in_and_no_cycle_is_closed_unasked(seed: int) -> None:
    rng = Random(seed)
    graph = RouteGraph(Placement(SHARDS), 12)
    kept: dict[str, RouteRule] = {}
    for _ in range(400):
        name = f"r{rng.randrange(20)}"
        if rng.random() < 0.2:
            graph.drop(name)
            kept.pop(name, None)
            continue
        source, dest = rng.sample("abcdefghij", 2)
        if name in kept and rng.random() < 0.5:
            source, dest = kept[name].source, kept[name].dest
        one = rule(name, source, dest, may_cycle=rng.random() < 0.2)
        refusal = graph.refusal(one)
        assert (refusal is None) == may_be_added(kept, one, 12), (kept, one, refusal)
        if refusal is None:
            graph.reserve(one)
            if rng.random() < 0.3:
                graph.release(name)
            else:
                graph.confirm(one)
                kept[name] = one
    assert {one.name for topic in "abcdefghij" for one in graph.touching(topic)} == set(kept)


def may_be_added(kept: dict[str, RouteRule], one: RouteRule, bound: int) -> bool:
    """Decide by the definition, not by following routes upstream."""
    known = kept.get(one.name)
    if known is not None and (known.source, known.dest) != (one.source, one.dest):
        return False
    others = [other for other in kept.values() if other.name != one.name]
    if any(other.dest == one.dest for other in others):
        return False
    if known is None and len(kept) >= bound:
        return False
    # Where a rule is there already, only a cycle of rules of which none may be in one is of its making.
    ways = others if known is None else [other for other in others if not other.may_cycle]
    reached = {one.dest}
    for _ in ways:
        reached |= {other.dest for other in ways if other.source in reached}
    return one.may_cycle or one.source not in reached
