from __future__ import annotations

import json

import pytest

from shared.contract.errors import (
    METHOD_NOT_ALLOWED,
    NOT_READY,
    STATUS,
    UNAUTHORIZED,
    Refusal,
)
from shared.http.answer import REASONS, closing_refusal, refusal_body, refusal_fields


@pytest.mark.parametrize("status", sorted(set(STATUS.values())))
def test_every_status_has_a_reason_phrase(status: int) -> None:
    assert REASONS[status]


def test_a_closing_refusal_is_a_complete_response() -> None:
    answer = closing_refusal(Refusal(NOT_READY, "shard 1 is gone", {"shard": 1}, retry_after_ms=1000))
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 503 Service Unavailable"
    assert set(lines[1:]) == {
        b"content-type: application/json",
        b"retry-after: 1",
        b"connection: close",
        b"content-length: %d" % len(body),
    }
    assert json.loads(body) == {
        "error": {
            "code": "not_ready",
            "message": "shard 1 is gone",
            "detail": {"shard": 1, "retry_after_ms": 1000},
        },
    }
    assert body.endswith(b"}\n")


def test_a_refusal_without_detail_has_no_detail_field() -> None:
    assert refusal_body(Refusal(NOT_READY, "no")) == {"error": {"code": "not_ready", "message": "no"}}


@pytest.mark.parametrize(("ms", "seconds"), [(1, 1), (1000, 1), (1001, 2), (60_000, 60)])
def test_retry_after_is_rounded_up_to_whole_seconds(ms: int, seconds: int) -> None:
    assert refusal_fields(Refusal(NOT_READY, "", retry_after_ms=ms)) == b"retry-after: %d\r\n" % seconds


def test_methods_and_challenge_go_into_fields() -> None:
    assert refusal_fields(Refusal(METHOD_NOT_ALLOWED, "", {"allow": "GET, PUT"})) == b"allow: GET, PUT\r\n"
    challenge = Refusal(UNAUTHORIZED, "", {"www_authenticate": "Bearer"})
    assert refusal_fields(challenge) == b"www-authenticate: Bearer\r\n"
