"""Routes in a worker: between a client and the supervisor, and as the shard that stores the rule."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pytest

from shared.contract.route_rule import (
    DeleteRoute,
    PutRoute,
    RouteQuery,
    RouteRule,
    RouteStatus,
    decode_route_rule,
    decode_route_status,
    decode_route_statuses,
    encode_route_message,
)
from shared.http.answer import refusal_in
from shared.ipc.link import NEVER_SENT, SUPERVISOR, LinkReply
from shared.ipc.link_kind import LinkKind
from shared.ipc.remote_request import decode_answer, encode_answer
from tests.harness.shard.one_shard import OneShard
from tests.harness.stage.one_connection import OneConnection, request

BODY = b'{"source":"a","dest":"b","filter":["tag","Glob","x*"],"from":"earliest"}'
RULE = RouteRule("a>b", "a", "b", ["tag", "Glob", "x*"], is_from_start=True)


def put(connection: OneConnection, body: bytes = BODY, *fields: str) -> None:
    connection.receive(request("PUT", "/v0/routers/a%3Eb", body, *fields))


def response(connection: OneConnection) -> tuple[int, Any]:
    connection.settle()
    answer = connection.wire.take()
    return int(answer[9:12]), json.loads(answer.partition(b"\r\n\r\n")[2])


def test_a_decoded_rule_goes_to_the_supervisor_and_its_answer_to_the_client() -> None:
    connection = OneConnection()
    put(connection)
    ((peer, kind, payload, done),) = connection.links.requests
    assert (peer, kind, decode_route_rule(payload)) == (SUPERVISOR, LinkKind.PUT_ROUTE, RULE)
    done(encode_answer(409, b"retry-after: 1\r\n", [b'{"as":"it is"}']))
    assert response(connection) == (409, {"as": "it is"})


@pytest.mark.parametrize(
    ("answer", "status", "code"), [(None, 504, "in_doubt"), (NEVER_SENT, 503, "not_ready")]
)
def test_a_lost_answer_of_the_supervisor_is_in_doubt(answer: bytes | None, status: int, code: str) -> None:
    connection = OneConnection()
    put(connection)
    connection.links.requests[0][3](answer)
    status_code, body = response(connection)
    assert (status_code, body["error"]["code"]) == (status, code)
    assert body["error"]["detail"]["retry_after_ms"] == 1000


def test_an_invalid_or_forbidden_rule_does_not_reach_the_supervisor() -> None:
    connection = OneConnection(keys="a-key-of-some-length::a")
    key = "authorization: Bearer a-key-of-some-length"
    for body, status in ((BODY, 403), (b'{"source":"a","dest":"a"}', 400), (b"[]", 400)):
        put(connection, body, key)
        assert response(connection)[0] == status
    assert connection.links.requests == []
    put(connection, b'{"source":"a","dest":"ab"}', key)
    assert len(connection.links.requests) == 1


def decoded(answer: bytes) -> tuple[int, bytes]:
    status, _, body = decode_answer(answer)
    return status, body


class DestinationShard:
    """The shard of the destination, with both topics."""

    def __init__(self) -> None:
        self.connection = OneConnection(here="abc")
        self.one: OneShard = self.connection.one
        for name in ("a", "b", "c"):
            self.one.put(name)

    def ask(self, kind: LinkKind, request: object) -> bytes:
        answers: list[bytes] = []
        reply = cast(LinkReply, answers.append)
        self.connection.dispatch.route_rules.answer_link(kind, encode_route_message(request), reply)
        self.one.settle()
        (answer,) = answers
        return answer

    def put(self, rule: RouteRule = RULE, epoch: int | None = None) -> tuple[int, bytes]:
        source_epoch = self.one.topic(rule.source).epoch if epoch is None else epoch
        return decoded(self.ask(LinkKind.PUT_ROUTE, PutRoute(rule, source_epoch)))

    def delete(self, name: str, epoch: int | None = None) -> tuple[int, bytes]:
        return decoded(self.ask(LinkKind.DELETE_ROUTE, DeleteRoute(name, epoch)))

    def listed(self, **selection: Any) -> list[RouteStatus]:
        return decode_route_statuses(self.ask(LinkKind.LIST_ROUTES, RouteQuery(**selection)))

    @property
    def names(self) -> list[str]:
        return [one.rule.name for one in self.listed()]


def test_an_updated_rule_keeps_its_start() -> None:
    owner = DestinationShard()
    status, body = owner.put()
    assert (status, decode_route_status(body)) == (201, RouteStatus(RULE, 0, created=True))
    changed = msgspec.structs.replace(RULE, tags=None, is_from_start=False)
    status, body = owner.put(changed)
    kept = msgspec.structs.replace(RULE, tags=None)
    assert (status, decode_route_status(body)) == (200, RouteStatus(kept, 0))
    assert owner.listed() == [RouteStatus(kept, 0)]


def test_a_rule_for_a_recreated_source_starts_again() -> None:
    owner = DestinationShard()
    owner.put()
    before = owner.one.shard.state.routes[RULE.name].source_epoch
    owner.one.delete_topic("a")
    owner.one.put("a")
    status, body = owner.put(msgspec.structs.replace(RULE, is_from_start=False))
    assert status == 201
    assert not decode_route_status(body).rule.is_from_start
    assert owner.one.shard.state.routes[RULE.name].source_epoch == owner.one.topic("a").epoch != before


def test_a_rule_without_a_destination_is_refused() -> None:
    owner = DestinationShard()
    status, body = owner.put(RouteRule("r", "a", "missing"), epoch=1)
    assert (status, refusal_in(body).code) == (404, "topic_not_found")
    assert owner.names == []


def test_a_delete_names_the_epoch_of_the_source() -> None:
    owner = DestinationShard()
    owner.put()
    epoch = owner.one.topic("a").epoch
    for name, source_epoch, is_deleted in (
        (RULE.name, epoch + 1, False),
        (RULE.name, epoch, True),
        (RULE.name, epoch, True),
        ("missing", None, True),
    ):
        status, body = owner.delete(name, source_epoch)
        assert (status, msgspec.msgpack.decode(body)) == (200, is_deleted)
    assert owner.names == []


def test_rules_are_listed_in_name_order_and_filtered() -> None:
    owner = DestinationShard()
    for name, source, dest in (("r2", "a", "b"), ("r1", "b", "c"), ("s", "c", "a")):
        assert owner.put(RouteRule(name, source, dest))[0] == 201

    def names(**selection: Any) -> list[str]:
        return [one.rule.name for one in owner.listed(**selection)]

    assert names() == ["r1", "r2", "s"]
    assert names(prefix="r", after="r1") == ["r2"]
    assert names(limit=2) == ["r1", "r2"]
    assert names(source="b") == names(dest="c") == ["r1"]
    assert names(source="b", dest="b") == names(name="r") == []
    assert names(name="s") == ["s"]
