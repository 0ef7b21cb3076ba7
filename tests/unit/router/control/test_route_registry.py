"""The routes over fake shards: the steps of a PUT, and the state after an unfinished PUT."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from router.control.route_answers import RouteAnswers
from router.control.route_registry import RouteRegistry
from shared.contract.errors import NOT_READY, STORAGE_FULL, TOPIC_NOT_EMPTY, TOPIC_NOT_FOUND, Refusal
from shared.contract.names import topic_id
from shared.contract.route_rule import (
    RouteRule,
    RouteStatus,
    TopicDeletion,
    decode_delete_route,
    decode_put_route,
    decode_route_query,
    encode_route_message,
)
from shared.http.answer import refusal_body
from shared.ipc.board import Board, WorkerState
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import Placement, shard_of
from shared.ipc.remote_request import decode_remote_request, encode_answer
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.server.whole_server import name_on

SHARDS = 2
A, B, C = name_on(0, SHARDS, "a"), name_on(1, SHARDS, "b"), name_on(0, SHARDS, "c")


class FakeShards:
    """Shards that keep topics and routes, record their requests, and fail on demand."""

    def __init__(self, bound: int) -> None:
        self.board = Board.create(SHARDS)
        for shard, slot in enumerate(self.board):
            slot.state, slot.pid = WorkerState.READY, 100 + shard
        self.control = RouteRegistry(self, self.board, Placement(SHARDS), self.ask, bound)
        self.answers = RouteAnswers(self.control, ManualClock())
        self.topics: dict[str, int] = {}
        """With their epochs."""
        self.rules: dict[str, tuple[RouteRule, int]] = {}
        self.requests: list[str] = []
        self.refusing: dict[str, Refusal] = {}
        """The refusals by request, written as in `requests`."""
        self.lost: set[str] = set()
        """Requests that are applied and receive no answer."""
        self.failing: set[LinkKind] = set()
        """Requests that end in an unexpected error."""
        self.paused: dict[str, asyncio.Event] = {}
        self._epoch = 0

    def __len__(self) -> int:
        return SHARDS

    def refusal(self, shard: int) -> Refusal | None:
        if self.board.slot(shard).state is WorkerState.READY:
            return None
        return Refusal(NOT_READY, f"shard {shard} is gone", {"shard": shard}, 1000)

    async def ask(self, shard: int, kind: LinkKind, payload: bytes) -> bytes | None:
        assert self.refusal(shard) is None
        if kind in self.failing:
            raise ZeroDivisionError
        what, answer = self._answer(shard, kind, payload)
        self.requests.append(what)
        if what in self.paused:
            await self.paused[what].wait()
        await asyncio.sleep(0)
        if what in self.refusing:
            return refused(self.refusing[what])
        result = answer()
        return None if what in self.lost else result

    def _answer(self, shard: int, kind: LinkKind, payload: bytes) -> tuple[str, Callable[[], bytes]]:
        if kind == LinkKind.LIST_ROUTES:
            return f"list {shard}", lambda: self._list(shard, payload)
        if kind == LinkKind.PUT_ROUTE:
            rule, epoch = msgspec.structs.astuple(decode_put_route(payload))
            assert self.owner(rule.dest) == shard
            return f"put rule {rule.name}", lambda: self._put_rule(rule, epoch)
        if kind == LinkKind.DELETE_ROUTE:
            name, source_epoch = msgspec.structs.astuple(decode_delete_route(payload))
            return f"delete rule {name}", lambda: self._delete_rule(name, source_epoch)
        assert kind == LinkKind.REQUEST
        request = decode_remote_request(payload)
        assert self.owner(request.name) == shard
        return f"{request.operation} {request.name}", lambda: self._topic(request.operation, request.name)

    @staticmethod
    def owner(topic: str) -> int:
        return shard_of(topic_id(topic), SHARDS)

    def _list(self, shard: int, payload: bytes) -> bytes:
        request = decode_route_query(payload)
        reports = [
            RouteStatus(rule, 5)
            for name, (rule, _) in sorted(self.rules.items())
            if self.owner(rule.dest) == shard and name.startswith(request.prefix) and name > request.after
            if request.name in ("", name)
        ]
        return encode_route_message(reports[: request.limit or None])

    def _put_rule(self, rule: RouteRule, epoch: int) -> bytes:
        if rule.source not in self.topics or rule.dest not in self.topics:
            return refused(Refusal(TOPIC_NOT_FOUND, "it is gone"))
        assert epoch == self.topics[rule.source]
        created = rule.name not in self.rules
        self.rules[rule.name] = (rule, epoch)
        return encode_answer(200, b"", [encode_route_message(RouteStatus(rule, 0, created))])

    def _delete_rule(self, name: str, source_epoch: int | None) -> bytes:
        if name in self.rules and source_epoch in (None, self.rules[name][1]):
            del self.rules[name]
        return encode_answer(200, b"", [encode_route_message(name not in self.rules)])

    def _topic(self, operation: str, name: str) -> bytes:
        if operation == "put_topic":
            created = name not in self.topics
            if created:
                self.make(name)
            return encode_answer(200, b"", [msgspec.json.encode({"created": created})])
        if operation == "delete_topic":
            self.topics.pop(name, None)
            return encode_answer(200, b"", [b"{}"])
        if name not in self.topics:
            return refused(Refusal(TOPIC_NOT_FOUND, f"{name} is not there"))
        return encode_answer(200, b"", [msgspec.json.encode({"epoch": self.topics[name]})])

    def make(self, *names: str) -> None:
        for name in names:
            self._epoch += 1
            self.topics[name] = self._epoch

    def lose(self, topic: str) -> TopicDeletion:
        """Delete a topic at its shard, with the routes into it."""
        self.rules = {name: one for name, one in self.rules.items() if one[0].dest != topic}
        return TopicDeletion(topic, self.topics.pop(topic))

    async def put(self, name: str, source: str, dest: str, **options: Any) -> RouteStatus | Refusal:
        return await self.control.put(RouteRule(name, source, dest, **options))

    async def made(self, name: str, source: str, dest: str, **options: Any) -> RouteStatus:
        report = await self.put(name, source, dest, **options)
        assert isinstance(report, RouteStatus), report
        return report

    async def refused(self, name: str, source: str, dest: str, **options: Any) -> Refusal:
        refusal = await self.put(name, source, dest, **options)
        assert isinstance(refusal, Refusal), refusal
        return refusal


def refused(refusal: Refusal) -> bytes:
    return encode_answer(400, b"", [msgspec.json.encode(refusal_body(refusal))])


def play(what: Callable[[FakeShards], Coroutine[Any, Any, None]], bound: int = 0) -> None:
    async def whole() -> None:
        fakes = FakeShards(bound)
        async with asyncio.timeout(10):
            await what(fakes)
        fakes.board.close()
        os.close(fakes.board.fd)

    asyncio.run(whole())


def test_the_route_is_put_after_both_of_its_topics() -> None:
    async def steps(fakes: FakeShards) -> None:
        assert (await fakes.made("r", A, B)).created
        changes = [one for one in fakes.requests if one.startswith("put")]
        assert changes == [f"put_topic {A}", f"put_topic {B}", "put rule r"]
        assert set(fakes.topics) == {A, B}
        assert not (await fakes.made("r", A, B, keeps_tag=False)).created
        assert fakes.control.graph.find("r") == RouteRule("r", A, B, keeps_tag=False)

    play(steps)


def test_a_refused_check_creates_no_topic() -> None:
    async def steps(fakes: FakeShards) -> None:
        await fakes.made("r", A, B)
        before = dict(fakes.topics)
        assert (await fakes.refused("s", "new", B)).code == "topic_exists_incompatible"
        assert (await fakes.refused("s", B, A)).code == "router_cycle"
        assert (await fakes.refused("s", A, C)).code == "throttled"
        assert (fakes.topics, len(fakes.control.graph)) == (before, 1)

    play(steps, bound=1)


def test_without_create_dest_the_destination_must_exist() -> None:
    async def steps(fakes: FakeShards) -> None:
        missing = await fakes.refused("r", A, B, makes_dest=False)
        assert (missing.code, B in missing.message) == ("topic_not_found", True)
        assert (fakes.topics, len(fakes.control.graph)) == ({}, 0)
        fakes.make(B)
        await fakes.made("r", A, B, makes_dest=False)
        assert set(fakes.topics) == {A, B}

    play(steps)


@pytest.mark.parametrize("what", [f"put_topic {B}", "put rule r"])
def test_topics_created_for_a_refused_route_are_deleted_again(what: str) -> None:
    async def steps(fakes: FakeShards) -> None:
        fakes.refusing[what] = Refusal(STORAGE_FULL, "the disk is full", {"free_bytes": 1}, 1000)
        assert await fakes.refused("r", A, B) == fakes.refusing[what]
        assert (fakes.topics, len(fakes.control.graph)) == ({}, 0)
        fakes.make(A)
        await fakes.refused("r", A, B)
        assert set(fakes.topics) == {A}
        fakes.refusing.clear()
        assert (await fakes.made("r", A, B)).created

    play(steps)


def test_a_created_topic_stays_if_not_empty_or_used_by_another_route() -> None:
    async def steps(fakes: FakeShards) -> None:
        fakes.refusing["put rule r"] = Refusal(STORAGE_FULL, "the disk is full")
        fakes.refusing[f"delete_topic {A}"] = Refusal(TOPIC_NOT_EMPTY, "a client has written")
        await fakes.refused("r", A, B)
        assert set(fakes.topics) == {A}
        fakes.topics.clear()
        fakes.refusing.pop(f"delete_topic {A}")
        fakes.paused["put rule r"] = asyncio.Event()
        first = asyncio.create_task(fakes.refused("r", A, B))
        await until(lambda: fakes.requests[-1] == "put rule r")
        await fakes.made("s", A, C)
        fakes.paused["put rule r"].set()
        await first
        assert set(fakes.topics) == {A, C}

    play(steps)


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if not is_so():
            await asyncio.sleep(0)
    assert is_so()


@pytest.mark.parametrize(("second", "source", "dest"), [("s", C, B), ("s", B, A)])
def test_only_one_of_two_conflicting_routes_is_created(second: str, source: str, dest: str) -> None:
    async def steps(fakes: FakeShards) -> None:
        answer = await asyncio.gather(fakes.put("r", A, B), fakes.put(second, source, dest))
        assert [isinstance(one, RouteStatus) for one in answer] == [True, False]
        assert set(fakes.rules) == {"r"}

    play(steps)


def test_operations_on_one_name_run_one_after_the_other() -> None:
    async def steps(fakes: FakeShards) -> None:
        answer = await asyncio.gather(
            fakes.made("r", A, B), fakes.control.delete("r"), fakes.made("r", A, C), fakes.put("r", A, B)
        )
        assert [isinstance(one, Refusal) for one in answer] == [False, False, False, True]
        assert answer[1] is True
        assert fakes.rules["r"][0].dest == C
        assert fakes.control.graph.find("r") == fakes.rules["r"][0]

    play(steps)


def test_puts_are_refused_while_the_routes_of_a_shard_are_unknown() -> None:
    async def steps(fakes: FakeShards) -> None:
        fakes.board.slot(1).state = WorkerState.REPLAYING
        unknown = await fakes.refused("r", A, C)
        assert (unknown.code, unknown.detail) == ("not_ready", {"shard": 1})
        fakes.board.slot(1).state = WorkerState.READY
        await fakes.made("r", A, C)
        # What is known stays so when its shard is down.
        fakes.board.slot(1).state = WorkerState.GONE
        await fakes.made("r", A, C, keeps_node=False)
        assert (await fakes.refused("s", A, B)).detail == {"shard": 1}

    play(steps)


def test_a_new_worker_is_asked_for_its_routes_before_a_decision() -> None:
    async def steps(fakes: FakeShards) -> None:
        await fakes.made("r", A, B)
        fakes.make("elsewhere")
        fakes.rules["old"] = (RouteRule("old", "elsewhere", B), 3)
        del fakes.rules["r"]
        fakes.board.slot(1).pid += 1
        refusal = await fakes.refused("r", A, B)
        assert refusal.detail == {"reason": "router_dest_fan_in", "router": "old"}

    play(steps)


def test_a_route_that_ended_by_itself_excludes_no_other() -> None:
    async def steps(fakes: FakeShards) -> None:
        await fakes.made("r", A, B)
        fakes.rules.clear()
        assert (await fakes.made("s", C, B)).created
        fakes.rules.clear()
        assert (await fakes.made("t", B, C)).created

    play(steps)


def test_a_put_without_an_answer_is_in_doubt_until_its_shard_reports() -> None:
    async def steps(fakes: FakeShards) -> None:
        await fakes.made("r", A, B)
        for is_kept in (True, False):
            name = f"s{is_kept}"
            dest = name_on(1, SHARDS, name)
            fakes.lost = {f"put rule {name}"}
            assert (await fakes.refused(name, A, dest)).code == "in_doubt"
            assert {A, dest} <= set(fakes.topics), "topics that a route may need are kept"
            if not is_kept:
                del fakes.rules[name]
            fakes.board.slot(1).state = WorkerState.GONE
            assert (await fakes.refused("t", A, C)).detail == {"shard": 1}
            fakes.board.slot(1).state = WorkerState.READY
            answer = await fakes.put(f"other{name}", C, dest)
            assert isinstance(answer, Refusal) == is_kept

    play(steps)


def test_a_route_on_any_shard_can_be_found_and_deleted() -> None:
    async def steps(fakes: FakeShards) -> None:
        await fakes.made("r", A, B)
        await fakes.made("rr", B, C)
        route = await fakes.control.find("r")
        assert isinstance(route, RouteStatus)
        assert (route.rule.name, route.forwarded_total) == ("r", 5)
        assert await fakes.control.find("q") is None
        fakes.board.slot(1).state = WorkerState.GONE
        assert isinstance(await fakes.control.find("rr"), RouteStatus)
        for absent in (await fakes.control.find("r"), await fakes.control.delete("q")):
            assert isinstance(absent, Refusal)
            assert absent.detail == {"shard": 1}
        fakes.board.slot(1).state = WorkerState.READY
        assert [await fakes.control.delete("r") for _ in range(2)] == [True, False]
        assert fakes.control.graph.find("r") is None
        fakes.lost = {"delete rule rr"}
        in_doubt = await fakes.control.delete("rr")
        assert isinstance(in_doubt, Refusal)
        assert in_doubt.code == "in_doubt"

    play(steps)


def test_a_deleted_topic_ends_the_routes_from_it_and_into_it() -> None:
    async def steps(fakes: FakeShards) -> None:
        for name, source, dest in (("in", A, B), ("out", B, C), ("on", C, "end")):
            await fakes.made(name, source, dest)
        assert await fakes.control.end_routes_of_topic(fakes.lose(B)) == ["in", "out"]
        assert set(fakes.rules) == {"on"}
        assert len(fakes.control.graph) == 1
        assert await fakes.control.end_routes_of_topic(TopicDeletion("absent", 1)) == []

    play(steps)


def test_routes_of_a_topic_that_was_created_again_stay() -> None:
    async def steps(fakes: FakeShards) -> None:
        await fakes.made("in", A, B)
        await fakes.made("out", B, C)
        gone = fakes.lose(B)
        fakes.rules.clear()
        # Created again before the supervisor learns that the old topic was deleted.
        await fakes.made("new", A, B)
        await fakes.made("out", B, C)
        assert await fakes.control.end_routes_of_topic(gone) == []
        assert set(fakes.rules) == {"new", "out"}
        assert fakes.control.graph.find("new") is not None
        assert fakes.control.graph.find("out") is not None

    play(steps)


def test_a_route_on_a_shard_that_is_down_ends_later() -> None:
    async def steps(fakes: FakeShards) -> None:
        await fakes.made("out", A, B)
        fakes.board.slot(1).state = WorkerState.GONE
        assert await fakes.control.end_routes_of_topic(fakes.lose(A)) == ["out"]
        assert set(fakes.rules) == {"out"}

    play(steps)


def test_an_unexpected_error_leaves_nothing_reserved() -> None:
    async def steps(fakes: FakeShards) -> None:
        fakes.failing.add(LinkKind.PUT_ROUTE)
        with pytest.raises(ZeroDivisionError):
            await fakes.put("r", A, B)
        fakes.failing.clear()
        assert (await fakes.made("r", A, B)).created

    play(steps)


def test_the_answer_has_every_field_of_the_route() -> None:
    async def steps(fakes: FakeShards) -> None:
        rule = RouteRule("r", A, B, ["tag", "Eq", "x"], False, True, True, True, False, True)
        status, content, _ = await fakes.answers.put(rule)
        assert (status, list(content)[:2]) == (201, ["router", "created"])
        assert isinstance(content, dict)
        fields = {
            "source": A,
            "dest": B,
            "preserve_node": False,
            "preserve_tag": True,
            "create_dest": True,
            "filter": ["tag", "Eq", "x"],
            "allow_cycle": False,
            "guarantee": "exactly_once",
            "from": "earliest",
        }
        assert content == {"router": "r", "created": True, **fields, "performance": {"server_total_ms": 0.0}}
        assert (await fakes.answers.put(rule))[0] == 200
        answer = await fakes.answers.answer("router_state", "r", "", ())
        assert answer == {"router": "r", **fields, "forwarded_total": 5}
        listed = await fakes.answers.answer("list_routers", "", "prefix=r", ())
        assert listed == {"routers": [answer]}

    play(steps)


def test_routes_are_listed_in_pages_by_name_and_by_their_ends() -> None:
    async def steps(fakes: FakeShards) -> None:
        for number in range(5):
            await fakes.made(f"r>{number}", A, f"d{number}")
        seen, cursor = [], ""
        while cursor is not None:
            answer: Any = await fakes.answers.answer("list_routers", "", f"page_size=2&cursor={cursor}", ())
            seen += [one["router"] for one in answer["routers"]]
            cursor = answer.get("next_cursor")
        assert seen == [f"r>{number}" for number in range(5)]
        fakes.board.slot(1).state = WorkerState.GONE
        missing: Any = await fakes.answers.answer("list_routers", "", "", ())
        assert (missing.code, missing.detail) == ("not_ready", {"missing_shards": [1]})
        partial: Any = await fakes.answers.answer("list_routers", "", "partial=true", ())
        assert partial["missing_shards"] == [1]
        assert {one["router"] for one in partial["routers"]} < set(seen)

    play(steps)


@pytest.mark.parametrize("query", ["source=a%20b", "dest=-", "page_size=x", "cursor=%21", "partial=perhaps"])
def test_an_invalid_query_is_refused_with_its_field(query: str) -> None:
    async def steps(fakes: FakeShards) -> None:
        answer: Any = await fakes.answers.answer("list_routers", "", query, ())
        assert (answer.code, answer.message.partition(":")[0]) == ("invalid_request", query.partition("=")[0])

    play(steps)


def test_an_invalid_name_is_refused_and_an_absent_one_is_not_found() -> None:
    async def steps(fakes: FakeShards) -> None:
        for operation in ("router_state", "delete_router"):
            answer: Any = await fakes.answers.answer(operation, "a b", "", ())
            assert (answer.code, answer.detail) == ("invalid_request", {"field": "router"})
        answer = await fakes.answers.answer("router_state", "a>b", "", ())
        assert answer.code == "router_not_found"
        answer = await fakes.answers.answer("delete_router", "a>b", "", ())
        assert answer == {"router": "a>b", "deleted": False}

    play(steps)
