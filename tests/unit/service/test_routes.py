"""A worker between a client that wants a route and the front process, and as the one who keeps the rule."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec
import pytest

from shared.contract.route_rule import (
    DeleteForward,
    ForwardRule,
    ForwardsAsked,
    PutForward,
    ToldForward,
    decode_forward_rule,
    decode_told_forward,
    decode_told_forwards,
    encode_forward,
)
from shared.http.answer import refusal_in
from shared.ipc.link import FRONT, NEVER_SENT, Asked, LinkKind
from shared.ipc.remote_request import decode_answer, encode_answer
from tests.harness.one_lane import OneLane, request
from tests.harness.one_shard import OneShard

BODY = b'{"source":"a","dest":"b","filter":["tag","Glob","x*"],"from":"earliest"}'
RULE = ForwardRule("a>b", "a", "b", ["tag", "Glob", "x*"], is_from_start=True)


def put(lane: OneLane, body: bytes = BODY, *fields: str) -> None:
    lane.receive(request("PUT", "/v0/routers/a%3Eb", body, *fields))


def told(lane: OneLane) -> tuple[int, Any]:
    lane.settle()
    answer = lane.wire.take()
    return int(answer[9:12]), json.loads(answer.partition(b"\r\n\r\n")[2])


def test_a_rule_goes_to_the_front_process_as_it_was_read_and_its_answer_passes_through() -> None:
    lane = OneLane()
    put(lane)
    ((peer, kind, payload, done),) = lane.links.asked
    assert (peer, kind, decode_forward_rule(payload)) == (FRONT, LinkKind.PUT_FORWARD, RULE)
    done(encode_answer(409, b"retry-after: 1\r\n", [b'{"as":"it is"}']))
    assert told(lane) == (409, {"as": "it is"})


@pytest.mark.parametrize(
    ("answer", "status", "code"), [(None, 504, "in_doubt"), (NEVER_SENT, 503, "not_ready")]
)
def test_what_the_front_process_may_have_done_is_in_doubt(
    answer: bytes | None, status: int, code: str
) -> None:
    lane = OneLane()
    put(lane)
    lane.links.asked[0][3](answer)
    told_status, body = told(lane)
    assert (told_status, body["error"]["code"]) == (status, code)
    assert body["error"]["detail"]["retry_after_ms"] == 1000


def test_what_is_wrong_and_what_a_key_is_not_for_goes_nowhere() -> None:
    lane = OneLane(keys="a-key-of-some-length::a")
    key = "authorization: Bearer a-key-of-some-length"
    for body, status in ((BODY, 403), (b'{"source":"a","dest":"a"}', 400), (b"[]", 400)):
        put(lane, body, key)
        assert told(lane)[0] == status
    assert lane.links.asked == []
    put(lane, b'{"source":"a","dest":"ab"}', key)
    assert len(lane.links.asked) == 1


def answered(answer: bytes) -> tuple[int, bytes]:
    status, _, body = decode_answer(answer)
    return status, body


class Keeper:
    """The shard of the destination, with both topics."""

    def __init__(self) -> None:
        self.lane = OneLane()
        self.one: OneShard = self.lane.one
        for name in ("a", "b", "c"):
            self.one.put(name)

    def ask(self, kind: LinkKind, question: object) -> bytes:
        answers: list[bytes] = []
        asked = cast(Asked, answers.append)
        self.lane.dispatch.forward_rules.answer_link(kind, encode_forward(question), asked)
        self.one.settle()
        (answer,) = answers
        return answer

    def put(self, rule: ForwardRule = RULE, epoch: int | None = None) -> tuple[int, bytes]:
        source_epoch = self.one.topic(rule.source).epoch if epoch is None else epoch
        return answered(self.ask(LinkKind.PUT_FORWARD, PutForward(rule, source_epoch)))

    def delete(self, name: str, epoch: int | None = None) -> tuple[int, bytes]:
        return answered(self.ask(LinkKind.DELETE_FORWARD, DeleteForward(name, epoch)))

    def listed(self, **asked: Any) -> list[ToldForward]:
        return decode_told_forwards(self.ask(LinkKind.LIST_FORWARDS, ForwardsAsked(**asked)))

    @property
    def names(self) -> list[str]:
        return [one.rule.name for one in self.listed()]


def test_a_rule_is_kept_and_changed_and_stays_where_it_began() -> None:
    keeper = Keeper()
    status, body = keeper.put()
    assert (status, decode_told_forward(body)) == (201, ToldForward(RULE, 0, created=True))
    changed = msgspec.structs.replace(RULE, tags=None, is_from_start=False)
    status, body = keeper.put(changed)
    kept = msgspec.structs.replace(RULE, tags=None)
    assert (status, decode_told_forward(body)) == (200, ToldForward(kept, 0))
    assert keeper.listed() == [ToldForward(kept, 0)]


def test_a_rule_of_a_source_that_was_made_anew_begins_anew() -> None:
    keeper = Keeper()
    keeper.put()
    before = keeper.one.shard.state.forwards[RULE.name].source_epoch
    keeper.one.shard.state.on_forward = lambda forward: None
    keeper.one.delete_topic("a")
    keeper.one.put("a")
    status, body = keeper.put(msgspec.structs.replace(RULE, is_from_start=False))
    assert status == 201
    assert not decode_told_forward(body).rule.is_from_start
    assert keeper.one.shard.state.forwards[RULE.name].source_epoch == keeper.one.topic("a").epoch != before


def test_a_rule_without_a_destination_is_refused() -> None:
    keeper = Keeper()
    status, body = keeper.put(ForwardRule("r", "a", "nobody"), epoch=1)
    assert (status, refusal_in(body).code) == (404, "topic_not_found")
    assert keeper.names == []


def test_only_the_rule_of_that_incarnation_of_the_source_ends() -> None:
    keeper = Keeper()
    keeper.put()
    epoch = keeper.one.topic("a").epoch
    for name, of, is_over in (
        (RULE.name, epoch + 1, False),
        (RULE.name, epoch, True),
        (RULE.name, epoch, True),
        ("nobody", None, True),
    ):
        status, body = keeper.delete(name, of)
        assert (status, msgspec.msgpack.decode(body)) == (200, is_over)
    assert keeper.names == []


def test_rules_are_told_in_name_order_by_what_is_asked() -> None:
    keeper = Keeper()
    for name, source, dest in (("r2", "a", "b"), ("r1", "b", "c"), ("s", "c", "a")):
        assert keeper.put(ForwardRule(name, source, dest))[0] == 201

    def names(**asked: Any) -> list[str]:
        return [one.rule.name for one in keeper.listed(**asked)]

    assert names() == ["r1", "r2", "s"]
    assert names(prefix="r", after="r1") == ["r2"]
    assert names(limit=2) == ["r1", "r2"]
    assert names(source="b") == names(dest="c") == ["r1"]
    assert names(source="b", dest="b") == names(name="r") == []
    assert names(name="s") == ["s"]
