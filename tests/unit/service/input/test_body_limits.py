"""The check of large bodies: refused ones, those left to the decoder, and legal ones that pass."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

import topicsd.service.input.body_limits
from shared.contract.errors import Refusal
from shared.settings.settings import Settings
from topicsd.service.input.bodies import APPEND_BODY, DeleteBody, DiffBody, decode_append
from topicsd.service.input.body_limits import check_large_append, is_large_append
from topicsd.service.input.json_body import CONTROL_BODY_BYTES, FIELD_BYTES_MAX, JsonBody

LIMITS = Settings(max_batch_records=100)


def _check(body: Any) -> Refusal | None:
    return check_large_append(json.dumps(body).encode(), APPEND_BODY, LIMITS)


def test_the_longest_legal_append_passes_in_any_spelling() -> None:
    record = {"data": 1, "tag": "\x01" * 256, "node": "é" * 64}
    body = {"records": [record] * 100, "node": "é" * 64, "idempotency_key": "\U0001f600" * 256}
    assert _check(body) is None
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
def test_the_refusal_names_the_field_that_is_too_long(body: Any, field: str) -> None:
    refusal = _check(body)
    assert refusal is not None
    assert refusal.detail is not None
    assert refusal.detail["field"] == field
    assert refusal.message.startswith(field)


@pytest.mark.parametrize("body", [b'{"node":5}', b'{"records":[{"data":1,"tag":5}]}'])
def test_wrong_types_are_left_to_the_decoder(body: bytes) -> None:
    assert check_large_append(body, APPEND_BODY, LIMITS) is None
    assert isinstance(decode_append(body, LIMITS), Refusal)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"records":1}', b"{", b'{"records":[' + b"1," * 10**6])
def test_a_malformed_append_is_refused_before_it_is_decoded(body: bytes) -> None:
    assert check_large_append(body, APPEND_BODY, LIMITS) is not None


SMALL_VALUES = b"[%b]" % b",".join([b"1"] * 1_500_000)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"record":%b,"records":[]}', "record: unknown field, did you mean records?"),
        (b'{"records":[{"data":1,"dat":%b}]}', "records[0].dat: unknown field, did you mean data?"),
        # The key itself is that long: it is not decoded either.
        (
            b'{"records":[],"%b":1}',
            "the body has 2.9 MiB (3000020 bytes) of unknown fields or white space; allowed: ",
        ),
    ],
)
def test_a_large_append_with_an_unknown_field_is_refused_at_its_key(body: bytes, message: str) -> None:
    refusal = check_large_append(body % SMALL_VALUES, APPEND_BODY, LIMITS)
    assert refusal is not None
    assert refusal.message.startswith(message)


def test_only_a_body_that_may_decode_to_much_more_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topicsd.service.input.body_limits, "APPEND_BODY_BYTES", 10_000)
    assert not is_large_append(b'{"records":[{"data":"%b"}]}' % (b"x" * 5000), 100)
    assert is_large_append(b'{"records":[{"data":"%b"}]}' % (b"x" * 10_000), 100)
    many = b'{"records":[%b]}' % b",".join([b'{"data":1}'] * 101)
    assert is_large_append(many, 100)


@pytest.mark.parametrize(
    ("kind", "field"), [(DiffBody, "node"), (DiffBody, "from_seq"), (DeleteBody, "match")]
)
def test_a_field_of_a_control_body_has_a_bound(kind: type[msgspec.Struct], field: str) -> None:
    body = JsonBody(kind, "{}")
    long = body.decode(b'{"%b":["%b"]}' % (field.encode(), b"x" * FIELD_BYTES_MAX))
    assert isinstance(long, Refusal)
    assert long.message == f"{field}: must be at most 256 KiB (262144 bytes), got 256 KiB (262148 bytes)"
    short = body.decode(b'{"%b":["%b"]}' % (field.encode(), b"x" * (FIELD_BYTES_MAX - 100)))
    # The fields take a list of one text, except the number.
    assert isinstance(short, Refusal) == (field == "from_seq")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b'{"match":["a"],"before":[%b1]}' % (b"1," * 10**6),
            "before: unknown field, did you mean before_seq?",
        ),
        (
            b'{"%b":1}' % (b"k" * 10**6),
            "the body has 976.6 KiB (1000006 bytes) of unknown fields or white space; allowed: ",
        ),
        (b'{"match":["a"' + b',"a"' * 10**6, "the body is not JSON: it ends too early"),
        (b"x" * (CONTROL_BODY_BYTES + 1), "the body is not JSON: invalid character (byte 0)"),
        (b"\xff" * (CONTROL_BODY_BYTES + 1), "the body must be UTF-8"),
    ],
)
def test_a_large_control_body_is_refused_before_it_is_decoded(body: bytes, message: str) -> None:
    refusal = JsonBody(DeleteBody, "{}").decode(body)
    assert isinstance(refusal, Refusal)
    assert refusal.message.startswith(message)
