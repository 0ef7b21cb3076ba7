from __future__ import annotations

from typing import Any

import msgspec
import pytest

from shared.contract.route_rule import RouteRule
from tests.harness.shard.one_shard import OneShard, RecordedReply
from topicsd.engine.routes.route import (
    RouteDeleted,
    RoutePut,
    SourceLookup,
    SourcePosition,
    delete_route,
    put_route,
)

RULE = RouteRule("a>b", "a", "b")


def send_put(one: OneShard, rule: RouteRule, find_source: SourceLookup | None = None) -> RecordedReply:
    reply = RecordedReply()
    put_route(one.shard.state, rule, reply, find_source)
    return reply


def put(one: OneShard, rule: RouteRule = RULE) -> Any:
    reply = send_put(one, rule)
    one.settle()
    return reply.answer


def delete(one: OneShard, name: str = RULE.name) -> Any:
    reply = RecordedReply()
    delete_route(one.shard.state, name, reply)
    one.settle()
    return reply.answer


def places(one: OneShard) -> dict[str, tuple[int, int, int]]:
    """By name: the incarnation of the source, how far, and how many copies."""
    routes = one.shard.state.routes
    assert all(name in one.topic(forward.rule.dest).routes for name, forward in routes.items())
    return {
        name: (forward.source_epoch, forward.seq, forward.forwarded_total) for name, forward in routes.items()
    }


def stage(**settings: Any) -> OneShard:
    one = OneShard(**settings)
    one.append("a", 1, 2, 3)
    one.put("b")
    return one


def test_a_rule_begins_at_the_head_or_with_the_oldest_that_is_alive() -> None:
    one = stage()
    one.delete("a", before_seq=2)
    epoch = one.topic("a").epoch
    assert put(one) == RoutePut(RULE, created=True, forwarded_total=0)
    start = msgspec.structs.replace(RULE, name="from-start", is_from_start=True)
    assert put(one, start).created
    assert places(one) == {"a>b": (epoch, 3, 0), "from-start": (epoch, 1, 0)}


def test_one_that_is_there_gets_other_options_and_stays_where_it_is() -> None:
    one = stage()
    put(one)
    before = places(one)
    one.append("a", 4)
    changed = msgspec.structs.replace(RULE, tags=["tag", "Eq", "x"], keeps_node=False)
    assert put(one, changed) == RoutePut(changed, created=False, forwarded_total=0)
    assert put(one, changed) == RoutePut(changed, created=False, forwarded_total=0)
    assert places(one) == before
    assert one.shard.state.routes["a>b"].rule == changed
    one.kill()
    assert places(one) == before
    assert one.shard.state.routes["a>b"].rule == changed


def test_one_that_leads_elsewhere_is_not_pointed_here() -> None:
    one = stage()
    one.put("c")
    put(one)
    for other in (RouteRule("a>b", "c", "b"), RouteRule("a>b", "a", "c")):
        refused = put(one, other)
        assert refused.code == "topic_exists_incompatible"
        assert refused.detail == {"reason": "router_repoint_forbidden"}


def test_both_ends_have_to_be_there() -> None:
    one = OneShard()
    one.put("b")
    assert put(one).code == "topic_not_found"
    one.delete_topic("b")
    one.put("a")
    assert put(one).code == "topic_not_found"
    assert delete(one) == RouteDeleted("a>b", deleted=False)


def test_where_a_source_of_another_shard_stands_is_asked() -> None:
    one = OneShard()
    one.put("b")
    calls: list[Any] = []

    def find_source(name: str, on_position: Any) -> None:
        calls.append((name, on_position))

    reply = send_put(one, RULE, find_source)
    missing = send_put(one, RouteRule("r", "a", "nowhere"), find_source)
    assert missing.code == "topic_not_found"
    one.settle()
    assert not reply.has_answer
    [(name, on_stand)] = calls
    assert name == "a"
    on_stand(SourcePosition(77, 9, 4))
    one.settle()
    assert reply.answer.created
    assert places(one) == {"a>b": (77, 9, 0)}


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("end", ["restart", "kill", "reboot", "cut_power"])
@pytest.mark.parametrize("checkpoints", [0, 1])
def test_rules_outlive_every_end(end: str, durability: str, checkpoints: int) -> None:
    one = OneShard()
    one.put("a", durability="fsync")
    one.append("a", 1, 2, 3)
    one.put("b", durability=durability)
    put(one)
    put(one, RouteRule("gone", "a", "b"))
    for _ in range(checkpoints):
        one.checkpoint()
    assert delete(one, "gone").deleted
    put(one, RouteRule("a>b", "a", "b", ["tag", "Eq", "x"]))
    expected = places(one)
    assert list(expected) == ["a>b"]
    getattr(one, end)()
    assert places(one) == expected
    assert one.shard.state.routes["a>b"].rule.tags == ["tag", "Eq", "x"]


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_rules_go_with_the_topic_they_copy_into(checkpoints: int) -> None:
    one = stage()
    put(one)
    put(one, RouteRule("2nd", "a", "b"))
    for _ in range(checkpoints):
        one.checkpoint()
    gone: list[str] = []
    one.shard.state.follow_routes(lambda forward: gone.append(forward.rule.name if forward.is_gone else ""))
    assert one.delete_topic("b").routes == ["2nd", "a>b"]
    assert sorted(gone) == ["2nd", "a>b"]
    assert one.delete_topic("a").routes == []
    one.put("b")
    assert places(one) == {}
    one.kill()
    assert places(one) == {}


def test_what_comes_while_its_topic_is_being_deleted_is_of_the_next_one() -> None:
    one = stage()
    put(one)
    going = one.send_delete_topic("b")
    late = send_put(one, RULE)
    one.settle()
    assert going.answer.deleted
    assert late.code == "topic_not_found"


def test_a_rule_that_came_to_nothing_is_not_there() -> None:
    one = stage()
    put(one)
    one.disk.fail("sync_data")
    assert put(one, RouteRule("r", "a", "b")).code == "storage_failed"
    assert list(places(one)) == ["a>b"]


def test_a_route_whose_delete_failed_continues() -> None:
    one = stage()
    put(one)
    one.disk.fail("sync_data")
    assert delete(one).code == "storage_failed"
    assert list(places(one)) == ["a>b"]
