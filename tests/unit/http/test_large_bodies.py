"""The look at a large body: what it refuses, what it leaves to the decoder, and that legal bodies pass."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

import topicsd.http.large_bodies
from shared.config import Settings
from shared.errors import Refusal
from topicsd.http.bodies import DeleteBody, DiffBody, decode_append
from topicsd.http.large_bodies import FIELD_BYTES_MAX, control_look, look_at_append, needs_look

LIMITS = Settings(max_batch_records=100)


def _look(body: Any) -> Refusal | None:
    return look_at_append(json.dumps(body).encode(), LIMITS)


def test_the_longest_that_is_legal_passes_however_it_is_written() -> None:
    record = {"data": 1, "tag": "\x01" * 256, "node": "é" * 64}
    body = {"records": [record] * 100, "node": "é" * 64, "idempotency_key": "\U0001f600" * 256}
    assert _look(body) is None
    assert not isinstance(decode_append(json.dumps(body).encode(), LIMITS), Refusal)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"records": [{"data": 1}], "node": "n" * 1000}, "node"),
        ({"records": [{"data": 1}], "idempotency_key": "k" * 4000}, "idempotency_key"),
        ({"records": [{"data": 1}, {"data": 1, "tag": "t" * 2000}]}, "records[1].tag"),
        ({"records": [{"data": 1}, {"data": 1, "node": "n" * 1000}]}, "records[1].node"),
        ({"records": [{"data": 1}] * 101}, "records"),
    ],
)
def test_what_is_too_long_is_named(body: Any, field: str) -> None:
    refusal = _look(body)
    assert refusal is not None
    assert refusal.detail is not None
    assert refusal.detail["field"] == field
    assert refusal.message.startswith(field)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"records":1}', b'{"records":[{}]}', b"{", b"\xff"])
def test_what_is_wrong_otherwise_is_left_to_the_decoder(body: bytes) -> None:
    assert look_at_append(body, LIMITS) is None
    assert isinstance(decode_append(body, LIMITS), Refusal)


def test_only_a_body_that_could_cost_more_than_it_weighs_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topicsd.http.large_bodies, "APPEND_BODY_BYTES", 10_000)
    assert not needs_look(b'{"records":[{"data":"%b"}]}' % (b"x" * 5000), 100)
    assert needs_look(b'{"records":[{"data":"%b"}]}' % (b"x" * 10_000), 100)
    many = b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 101)
    assert needs_look(many, 100)


@pytest.mark.parametrize(
    ("kind", "field"), [(DiffBody, "node"), (DiffBody, "from_seq"), (DeleteBody, "match")]
)
def test_a_field_of_a_control_body_has_a_bound(kind: type[msgspec.Struct], field: str) -> None:
    look = control_look(kind)
    assert look(b'{"%b":["%b"]}' % (field.encode(), b"x" * (FIELD_BYTES_MAX - 100))) is None
    refusal = look(b'{"%b":["%b"]}' % (field.encode(), b"x" * FIELD_BYTES_MAX))
    assert refusal is not None
    assert refusal.message.startswith(f"{field}: has ")
    assert look(b'{"other":["%b"]}' % (b"x" * FIELD_BYTES_MAX)) is None
    assert look(b"x" * (FIELD_BYTES_MAX + 10)) is None
