"""Records are checked against the schema of their topic, on every way in but dead letters."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest

from shared.contract.errors import (
    INVALID_REQUEST,
    NOT_IMPLEMENTED,
    SCHEMA_MISMATCH,
    TOPIC_EXISTS_INCOMPATIBLE,
    Refusal,
)
from shared.contract.topic_config import SCHEMA_BYTES_MAX, TopicConfigPatch
from tests.harness.shard.one_shard import OneShard, bytes_record
from tests.harness.shard.two_shards import TwoShards
from tests.harness.stage.route_shards import RouteShards
from tests.harness.stage.transfer_shards import TransferShards
from topicsd.engine.schema.mismatches import LOG_SECONDS
from topicsd.engine.schema.record_schema import schema_of

ORDER = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["id"],
}
ENDS: list[Callable[[OneShard], object]] = [
    lambda one: None,
    OneShard.kill,
    OneShard.restart,
    lambda one: (one.checkpoint(), one.cut_power()),
]


def orders(**config: Any) -> OneShard:
    one = OneShard()
    one.put("t", schema=ORDER, **config)
    return one


def refused_put(one: OneShard, topic: str = "t", **patch: Any) -> Refusal:
    answer = one.send_put(topic, **patch).answer
    assert isinstance(answer, Refusal), answer
    return answer


@pytest.mark.parametrize("end", ENDS, ids=["running", "killed", "restarted", "power cut"])
def test_a_write_with_a_record_that_breaks_the_schema_changes_nothing(
    end: Callable[[OneShard], object],
) -> None:
    one = orders(durability="fsync")
    one.append("t", {"id": 1})
    end(one)
    refusal = one.refused_append("t", {"id": 2}, {"id": 3, "tags": ["a", 5]}, {})
    assert refusal.code == SCHEMA_MISMATCH
    assert refusal.detail == {"field": "records[1].data", "index": 1, "path": "/tags/1", "rule": "type"}
    assert refusal.message.startswith('records[1].data: breaks the schema of topic "t" at /tags/1: 5 is not')
    assert one.shard.state.mismatches.refused == 1
    assert one.append("t", {"id": 4}).first_seq == 2
    assert one.seqs("t") == [1, 2]


def test_the_rule_of_a_missing_property_is_at_the_value_that_lacks_it() -> None:
    detail = orders().refused_append("t", {}).detail
    assert detail is not None
    assert (detail["path"], detail["rule"], detail["index"]) == ("", "required", 0)


@pytest.mark.parametrize(
    ("record", "rule"),
    [
        (bytes_record(b'{"id":1}'), "bytes"),
        (b"1e400", "json"),
        (b'{"id":1,"x":1e999}', "json"),
        (b'"\\ud800"', "json"),
        (b"99999999999999999999999", "type"),
    ],
)
def test_what_is_no_json_value_breaks_every_schema(record: Any, rule: str) -> None:
    detail = orders().refused_append("t", {"id": 1}, record).detail
    assert detail is not None
    assert (detail["index"], detail["rule"]) == (1, rule)


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(orders().refused_append("t", "x" * 10_000).message) < 500


def test_integers_of_any_size_and_other_json_are_checked() -> None:
    one = orders()
    one.append("t", b'{"id":123456789012345678901234567890,"id2":-0.0}', b' {"id" : 1.0}')
    assert one.topic("t").head == 2


def test_warn_accepts_counts_and_logs_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    one = orders(schema_mode="warn")
    with caplog.at_level(logging.WARNING, "topicsd.engine"):
        one.append("t", {"id": 1}, "secret", {"id": "secret"})
        one.append("t", "secret")
        assert len(caplog.records) == 1
        one.pass_time(LOG_SECONDS * 1000 + 1)
        one.append("t", {"id": "secret"})
    assert one.seqs("t") == [1, 2, 3, 4, 5]
    assert (one.shard.state.mismatches.accepted, one.shard.state.mismatches.refused) == (4, 0)
    texts = [one_record.getMessage() for one_record in caplog.records]
    assert texts == [
        "schema: record accepted that breaks it: at the top, rule type",
        "schema: record accepted that breaks it: at /id, rule type",
    ]


def test_off_keeps_the_schema_and_checks_nothing() -> None:
    one = orders(schema_mode="off")
    one.append("t", "anything", bytes_record(b"\0"))
    one.put("t", schema_mode="reject")
    assert one.refused_append("t", "anything").code == SCHEMA_MISMATCH
    one.put("t", schema=None)
    one.append("t", "anything")
    assert one.shard.state.topics["t"].config.schema is None


def test_a_write_is_checked_against_the_schema_of_the_topic_that_it_creates() -> None:
    one = OneShard()
    config = TopicConfigPatch(schema=ORDER)
    refusal = one.refused_append("t", "no", config=config)
    assert refusal.code == SCHEMA_MISMATCH
    assert "t" not in one.shard.state.topics
    assert one.append("t", {"id": 1}, config=config).created
    refusal = one.refused_append("u", 1, config=TopicConfigPatch(schema={"type": "strin"}))
    assert refusal.detail == {"field": "config.schema", "path": "/type"}


def test_a_repeated_write_is_answered_though_the_schema_is_stricter_now() -> None:
    one = OneShard()
    one.put("t")
    one.append("t", "text", idempotency_key="k")
    one.put("t", schema=ORDER)
    assert one.append("t", "text", idempotency_key="k").deduped


# -- schemas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strin"}, "schema: must be JSON Schema 2020-12, and is not at /type: "),
        ({"properties": {"a": {"pattern": "("}}}, "and is not at /properties/a/pattern: "),
        ({"pattern": "(?=a)"}, "is not at /pattern: "),
        ({"$ref": "https://a.example/other"}, "schema: each $ref must name a part of the same document: "),
        ({"$ref": "file:///etc/passwd"}, "schema: each $ref must name a part of the same document: "),
        ({"$ref": "#/$defs/missing"}, "schema: each $ref must name a part of the same document: "),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, 'schema.$schema: must be "https://json-'),
    ],
)
def test_a_document_that_is_no_schema_is_refused(schema: dict[str, Any], message: str) -> None:
    one = OneShard()
    refusal = refused_put(one, schema=schema)
    assert refusal.code == INVALID_REQUEST
    assert message in refusal.message
    assert "t" not in one.shard.state.topics


def test_a_schema_is_bounded() -> None:
    refusal = refused_put(OneShard(), schema={"title": "x" * SCHEMA_BYTES_MAX})
    assert refusal.detail == {"field": "schema", "max": SCHEMA_BYTES_MAX}
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"not": deep}
    assert refused_put(OneShard(), schema=deep).message.startswith("schema: must be nested at most")


def test_a_change_that_may_reject_valid_records_needs_force() -> None:
    one = orders()
    stricter = {**ORDER, "required": ["id", "tags"]}
    refusal = refused_put(one, schema=stricter)
    assert refusal.code == TOPIC_EXISTS_INCOMPATIBLE
    assert refusal.detail == {"field": "schema", "path": "/required"}
    assert '"force":true' in refusal.message
    one.append("t", {"id": 1})
    one.put("t", schema={**ORDER, "required": []})
    one.append("t", {})
    one.put("t", schema=stricter, force=True)
    assert one.refused_append("t", {"id": 1}).code == SCHEMA_MISMATCH
    assert refused_put(one, force=True).message.startswith("force: must be sent with schema")


def test_a_stored_schema_is_the_one_that_pending_changes_leave() -> None:
    one = orders()
    first = one.send_put("t", schema={})
    second = one.send_put("t", schema=ORDER)
    assert second.code == TOPIC_EXISTS_INCOMPATIBLE
    one.settle()
    assert first.answer.config.schema == "{}"


def test_without_the_validator_a_schema_is_refused_and_those_there_refuse_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = orders()
    one.put("w", schema=ORDER, schema_mode="warn")
    one.put("free")
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    schema_of.cache_clear()
    try:
        one.kill()
        refusal = refused_put(one, "u", schema=ORDER)
        assert (refusal.code, refusal.detail) == (
            NOT_IMPLEMENTED,
            {"field": "schema", "extra": "topicsd[schema]"},
        )
        assert one.refused_append("t", {"id": 1}).code == NOT_IMPLEMENTED
        one.append("w", {"id": 1})
        assert one.shard.state.mismatches.accepted == 1
        one.append("free", "anything")
        one.put("t", schema=None)
        one.append("t", {"id": 1})
    finally:
        schema_of.cache_clear()


# -- other ways in -----------------------------------------------------------------------------------------


def test_a_copy_that_breaks_the_schema_waits_and_no_record_is_skipped() -> None:
    stage = RouteShards(1)
    one = stage.shards[0]
    one.put("a")
    one.put("b", schema=ORDER)
    stage.put_route("r", "a", "b")
    stage.append("a", {"id": 1}, {"id": 2}, "no", {"id": 3}, bytes_record(b"no"), {"id": 4})
    stage.pass_time(5000)
    assert one.seqs("b") == [1, 2]
    one.delete("a", seqs=[3])
    stage.pass_time(5000)
    assert [record.data for record in one.read("b").records] == [b'{"id":1}', b'{"id":2}', b'{"id":3}']
    one.put("b", schema_mode="warn")
    stage.pass_time(5000)
    assert one.topic("b").head == 5
    assert one.shard.state.mismatches.accepted == 1


def test_dead_letters_and_redriven_jobs_are_not_checked() -> None:
    stage = TransferShards()
    dead, queue = "d1", "q-0"
    stage.owner(queue).put(queue, type="queue", max_deliveries=1, dead_letter=dead)
    stage.owner(dead).put(dead, schema={"type": "null"})
    stage.owner(queue).append(queue, "job")
    stage.owner(queue).claim(queue, "w")
    stage.owner(queue).nack(queue, "w", 1)
    assert stage.owner(queue).claimed(queue, "w") == []
    stage.pass_time(3000)
    assert [data for data, _ in stage.records(dead)] == ["job"]
    stage.owner(queue).put(queue, schema={"type": "null"})
    answer = stage.request("redrive", dead, {})
    assert answer is not None
    assert answer[1]["redriven"] == 1
    assert [data for data, _ in stage.records(queue)] == ["job"]


def test_a_topic_takes_its_schema_with_it_when_it_moves() -> None:
    two = TwoShards()
    one, other = two.shards
    one.put("t", schema=ORDER)
    one.append("t", {"id": 1})
    two.move("t")
    assert other.append("t", {"id": 2}).first_seq == 2
    assert other.refused_append("t", {}).code == SCHEMA_MISMATCH
    other.kill()
    assert other.refused_append("t", {}).code == SCHEMA_MISMATCH
