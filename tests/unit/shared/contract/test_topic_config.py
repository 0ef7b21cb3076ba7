from typing import Any

import msgspec
import pytest

from shared.contract.errors import INVALID_REQUEST, TOPIC_EXISTS_INCOMPATIBLE, Refusal
from shared.contract.topic_config import (
    COUNTED_FIELDS,
    NUMBER_MAX,
    TopicConfig,
    TopicConfigPatch,
    merge_config,
)


def merged(existing: TopicConfig | None = None, /, **fields: Any) -> TopicConfig:
    config = merge_config(existing, TopicConfigPatch(**fields), "orders")
    assert isinstance(config, TopicConfig)
    return config


def refused(existing: TopicConfig | None = None, /, **fields: Any) -> Refusal:
    refusal = merge_config(existing, TopicConfigPatch(**fields), "orders")
    assert isinstance(refusal, Refusal)
    return refusal


def test_the_defaults_are_those_of_the_contract() -> None:
    assert msgspec.to_builtins(TopicConfig()) == {
        "type": "log",
        "ttl_ms": 0,
        "cap_records": 0,
        "cap_bytes": 0,
        "discard": "old",
        "durability": "disk",
        "priority": None,
        "auto_priority": True,
        "auto_create": True,
        "idempotency_window_ms": 120_000,
        "dedupe_node": True,
        "lease_ms": 30_000,
        "claim_jitter_ms": 0,
        "max_deliveries": 0,
        "dead_letter": None,
        "leases_durable": False,
        "protect_cursors": False,
        "order_by": None,
        "paused": False,
        "retry": None,
        "fair_by": None,
        "schema": None,
        "schema_mode": "reject",
    }


def test_the_patch_has_every_field_of_the_configuration_durable_force_and_those_of_shared_topics() -> None:
    others = {"durable", "placement", "latency", "force"}
    assert set(TopicConfigPatch.__struct_fields__) == {*TopicConfig.__struct_fields__, *others}


def test_a_local_topic_has_no_latency_class_and_never_becomes_shared() -> None:
    assert merged(TopicConfig(), placement="local") == TopicConfig()
    assert refused(latency="low").detail == {"field": "latency"}
    assert refused(placement="shared").code == INVALID_REQUEST
    assert refused(TopicConfig(), placement="shared").code == TOPIC_EXISTS_INCOMPATIBLE


def test_an_empty_patch_gives_the_defaults_or_changes_nothing() -> None:
    assert merged() == TopicConfig()
    existing = TopicConfig(type="queue", ttl_ms=5, durability="memory")
    assert merged(existing) == existing


def test_a_patch_changes_what_it_names_and_nothing_else() -> None:
    existing = TopicConfig(ttl_ms=5, cap_records=9, priority=3)
    assert merged(existing, ttl_ms=0, priority=None) == TopicConfig(cap_records=9)


@pytest.mark.parametrize(
    ("before", "fields", "after"),
    [
        (None, {"durable": True}, "fsync"),
        (None, {"durable": False}, "disk"),
        (None, {"durability": "memory"}, "memory"),
        (None, {"durable": True, "durability": "memory"}, "memory"),
        (None, {"durable": False, "durability": "fsync"}, "fsync"),
        (None, {"durability": "ephemeral"}, "ephemeral"),
        ("fsync", {}, "fsync"),
        ("fsync", {"durable": False}, "disk"),
        ("memory", {"durable": False}, "disk"),
        ("disk", {"durable": True}, "fsync"),
        ("ephemeral", {"durability": "ephemeral", "durable": False}, "ephemeral"),
    ],
)
def test_durable_is_a_shorthand_and_durability_overrides_it(
    before: Any, fields: dict[str, Any], after: str
) -> None:
    existing = None if before is None else TopicConfig(durability=before)
    config = merged(existing, **fields)
    assert config.durability == after
    assert config.durable == (after == "fsync")


@pytest.mark.parametrize(
    ("field", "value", "stored"),
    [
        ("priority", -1001, -1000),
        ("priority", 5000, 1000),
        ("priority", 1 << 80, 1000),
        ("priority", 7, 7),
        ("lease_ms", -1, 100),
        ("lease_ms", 86_400_001, 86_400_000),
        ("lease_ms", 100, 100),
        ("claim_jitter_ms", -1, 0),
        ("claim_jitter_ms", 5001, 5000),
    ],
)
def test_some_numbers_are_clamped(field: str, value: int, stored: int) -> None:
    assert getattr(merged(type="queue", **{field: value}), field) == stored


@pytest.mark.parametrize("field", COUNTED_FIELDS)
def test_other_numbers_are_refused_outside_their_bounds(field: str) -> None:
    assert getattr(merged(type="queue", **{field: 0}), field) == 0
    assert getattr(merged(type="queue", **{field: NUMBER_MAX}), field) == NUMBER_MAX
    low = refused(**{field: -1})
    assert (low.code, low.message) == (INVALID_REQUEST, f"{field}: must be at least 0, got -1")
    high = refused(**{field: NUMBER_MAX + 1})
    assert (high.code, high.message) == (INVALID_REQUEST, f"{field}: must be at most {NUMBER_MAX}")


@pytest.mark.parametrize("name", ["orders", "", "a b", "dead\n", "a>b"])
def test_a_dead_letter_topic_is_another_topic_with_a_good_name(name: str) -> None:
    refusal = refused(dead_letter=name)
    assert refusal.code == INVALID_REQUEST
    assert refusal.message.startswith("dead_letter: ")
    assert merged(type="queue", dead_letter="orders.dead").dead_letter == "orders.dead"
    assert merged(TopicConfig(dead_letter="orders.dead"), dead_letter=None).dead_letter is None


def test_the_type_of_a_topic_never_changes() -> None:
    assert merged(type="queue").type == "queue"
    assert merged(TopicConfig(type="queue"), type="queue").type == "queue"
    for old, new in (("log", "queue"), ("queue", "log")):
        refusal = refused(TopicConfig(type=old), type=new)  # type: ignore[arg-type]
        assert refusal.code == TOPIC_EXISTS_INCOMPATIBLE
        assert old in refusal.message
        assert new in refusal.message


@pytest.mark.parametrize(
    ("before", "fields"),
    [
        ("ephemeral", {"durability": "disk"}),
        ("ephemeral", {"durable": False}),
        ("ephemeral", {"durable": True}),
        ("memory", {"durability": "ephemeral"}),
        ("fsync", {"durability": "ephemeral", "durable": True}),
    ],
)
def test_a_topic_is_ephemeral_for_life_or_never(before: Any, fields: dict[str, Any]) -> None:
    assert refused(TopicConfig(durability=before), **fields).code == TOPIC_EXISTS_INCOMPATIBLE


def test_a_refused_patch_leaves_the_configuration_as_it_was() -> None:
    existing = TopicConfig(ttl_ms=5)
    refused(existing, ttl_ms=9, cap_bytes=-1)
    assert existing == TopicConfig(ttl_ms=5)


def test_a_configuration_is_stored_completely_and_decodes_to_itself() -> None:
    config = TopicConfig(type="queue", priority=-5, dead_letter="dead", durability="fsync")
    payload = msgspec.msgpack.encode(config)
    assert set(msgspec.msgpack.decode(payload)) == set(TopicConfig.__struct_fields__)
    assert msgspec.msgpack.decode(payload, type=TopicConfig) == config


def test_a_payload_of_another_release_decodes_with_defaults_and_without_unknown_fields() -> None:
    older = msgspec.msgpack.encode({"type": "queue", "ttl_ms": 7})
    assert msgspec.msgpack.decode(older, type=TopicConfig) == TopicConfig(type="queue", ttl_ms=7)
    newer = msgspec.msgpack.encode({"ttl_ms": 7, "colour": "red"})
    assert msgspec.msgpack.decode(newer, type=TopicConfig) == TopicConfig(ttl_ms=7)


def test_a_patch_distinguishes_a_missing_field_from_null() -> None:
    patch = msgspec.json.decode(b'{"priority":null}', type=TopicConfigPatch)
    assert patch.priority is None
    assert patch.dead_letter is msgspec.UNSET


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"stream"}',
        b'{"ttl_ms":["5"]}',
        b'{"cap_records":"5"}',
        b'{"ttl_ms":1.5}',
        b'{"lease_ms":null}',
        b'{"durable":"yes"}',
        b'{"durability":"tape"}',
        b'{"discard":"new"}',
    ],
)
def test_a_patch_of_a_wrong_type_does_not_decode(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(body, type=TopicConfigPatch)
