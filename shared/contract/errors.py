"""Refusals: one type for every error response, and one table of codes.

A refusal is a value. A function that may refuse returns `Something | Refusal`, so the type checker makes
every caller handle it, and a refused request costs no stack unwinding. Exceptions signal unexpected errors;
asserts state our own invariants.

`code` is stable and for programs. `message` is for people, and names the field and the violated bound. Only
this module derives the HTTP status from the code. The functions below write the sentence of each kind of
refusal that several modules make.
"""

from __future__ import annotations

from typing import Final

import msgspec

INVALID_REQUEST: Final = "invalid_request"
BATCH_TOO_LARGE: Final = "batch_too_large"
RECORD_TOO_LARGE: Final = "record_too_large"
UNAUTHORIZED: Final = "unauthorized"
FORBIDDEN: Final = "forbidden"
TOPIC_NOT_FOUND: Final = "topic_not_found"
ROUTER_NOT_FOUND: Final = "router_not_found"
NOT_FOUND: Final = "not_found"
METHOD_NOT_ALLOWED: Final = "method_not_allowed"
NOT_ACCEPTABLE: Final = "not_acceptable"
REQUEST_TIMEOUT: Final = "request_timeout"
ROUTER_CYCLE: Final = "router_cycle"
TOPIC_EXISTS_INCOMPATIBLE: Final = "topic_exists_incompatible"
TOPIC_NOT_EMPTY: Final = "topic_not_empty"
NOT_A_QUEUE: Final = "not_a_queue"
IDEMPOTENCY_MISMATCH: Final = "idempotency_mismatch"
HEAD_MISMATCH: Final = "head_mismatch"
POSITION_PAST_HEAD: Final = "position_past_head"
PRODUCER_GAP: Final = "producer_gap"
TOPIC_MOVED: Final = "topic_moved"
TOPIC_SEALED: Final = "topic_sealed"
TOPIC_FENCED: Final = "topic_fenced"
NOT_SUPPORTED: Final = "not_supported"
KEY_CONFLICT: Final = "key_conflict"
GONE: Final = "gone"
PAYLOAD_TOO_LARGE: Final = "payload_too_large"
URI_TOO_LONG: Final = "uri_too_long"
UNSUPPORTED_MEDIA_TYPE: Final = "unsupported_media_type"
TOPIC_FULL: Final = "topic_full"
SCHEMA_MISMATCH: Final = "schema_mismatch"
UPGRADE_REQUIRED: Final = "upgrade_required"
THROTTLED: Final = "throttled"
HEADERS_TOO_LARGE: Final = "headers_too_large"
INTERNAL: Final = "internal"
CORRUPT_SEGMENT: Final = "corrupt_segment"
NOT_IMPLEMENTED: Final = "not_implemented"
NOT_READY: Final = "not_ready"
SHUTTING_DOWN: Final = "shutting_down"
CATALOG_UNAVAILABLE: Final = "catalog_unavailable"
RELOCATED: Final = "relocated"
STORAGE_FAILED: Final = "storage_failed"
STORE_UNAVAILABLE: Final = "store_unavailable"
IN_DOUBT: Final = "in_doubt"
HTTP_VERSION_NOT_SUPPORTED: Final = "http_version_not_supported"
STORAGE_FULL: Final = "storage_full"

STATUS: Final[dict[str, int]] = {
    INVALID_REQUEST: 400,
    BATCH_TOO_LARGE: 400,
    RECORD_TOO_LARGE: 400,
    UNAUTHORIZED: 401,
    FORBIDDEN: 403,
    TOPIC_NOT_FOUND: 404,
    ROUTER_NOT_FOUND: 404,
    NOT_FOUND: 404,
    METHOD_NOT_ALLOWED: 405,
    NOT_ACCEPTABLE: 406,
    REQUEST_TIMEOUT: 408,
    ROUTER_CYCLE: 409,
    TOPIC_EXISTS_INCOMPATIBLE: 409,
    TOPIC_NOT_EMPTY: 409,
    NOT_A_QUEUE: 409,
    IDEMPOTENCY_MISMATCH: 409,
    HEAD_MISMATCH: 409,
    POSITION_PAST_HEAD: 409,
    PRODUCER_GAP: 409,
    TOPIC_MOVED: 409,
    TOPIC_SEALED: 409,
    TOPIC_FENCED: 409,
    NOT_SUPPORTED: 409,
    KEY_CONFLICT: 409,
    GONE: 410,
    PAYLOAD_TOO_LARGE: 413,
    URI_TOO_LONG: 414,
    UNSUPPORTED_MEDIA_TYPE: 415,
    TOPIC_FULL: 422,
    SCHEMA_MISMATCH: 422,
    UPGRADE_REQUIRED: 426,
    THROTTLED: 429,
    HEADERS_TOO_LARGE: 431,
    INTERNAL: 500,
    CORRUPT_SEGMENT: 500,
    NOT_IMPLEMENTED: 501,
    NOT_READY: 503,
    SHUTTING_DOWN: 503,
    CATALOG_UNAVAILABLE: 503,
    RELOCATED: 503,
    STORAGE_FAILED: 503,
    STORE_UNAVAILABLE: 503,
    IN_DOUBT: 504,
    HTTP_VERSION_NOT_SUPPORTED: 505,
    STORAGE_FULL: 507,
}


def reason_without_path(error: Exception) -> str:
    """Return the reason of an error without the path in it.

    >>> reason_without_path(OSError(5, "Input/output error", "/srv/topics/LOCK"))
    'Input/output error'
    """
    return error.strerror or "unknown error" if isinstance(error, OSError) else str(error)


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """The reason why a request was not served. The keys of `detail` depend on the code."""

    code: str
    message: str
    detail: dict[str, object] | None = None
    retry_after_ms: int | None = None

    def __post_init__(self) -> None:
        assert self.code in STATUS, f"unknown error code {self.code}"

    def inside(self, parent: str) -> Refusal:
        """Prefix the refused field with `parent`, its path in the body."""
        field = self.detail.get("field") if self.detail is not None else None
        if not parent or self.detail is None or not self.message.startswith(f"{field}: "):
            return self
        return Refusal(
            self.code,
            f"{parent}.{self.message}",
            {**self.detail, "field": f"{parent}.{field}"},
            self.retry_after_ms,
        )


RETRY_AFTER_MS: Final = 1000
"""The wait that a refusal suggests when a retry may soon succeed."""


def invalid(field: str, rule: str, bound: int | None = None) -> Refusal:
    """Refuse a field or parameter that violates a rule; `bound` is the maximum that it exceeds."""
    detail: dict[str, object] = {"field": field} if bound is None else {"field": field, "max": bound}
    return Refusal(INVALID_REQUEST, f"{field}: {rule}", detail)


def excluded(field: str, others: str) -> Refusal:
    """Refuse a field that was sent together with others that say the same."""
    return invalid(field, f"must not be sent with {others}")


def too_many(field: str, bound: int, count: int | None = None) -> Refusal:
    """Refuse a list of more than `bound` entries; `count` is absent when counting them all is too much."""
    got = "" if count is None else f", got {count}"
    message = f"{field}: must have at most {bound} entries{got}"
    return Refusal(BATCH_TOO_LARGE, message, {"field": field, "max": bound})


def limit_reached(limit: str, bound: int, usage: str) -> Refusal:
    """Refuse more of what a setting limits.

    >>> limit_reached("max_topics", 5, "no more topics can be created").message
    'no more topics can be created; TOPICS_MAX_TOPICS allows 5'
    """
    message = f"{usage}; TOPICS_{limit.upper()} allows {bound}"
    return Refusal(THROTTLED, message, {"limit": limit, "max": bound}, RETRY_AFTER_MS)


def not_supported(feature: str, field: str | None = None) -> Refusal:
    """Refuse what a shared topic does not have; `field` asked for it, if one did.

    >>> not_supported("cursors").message
    'a shared topic does not support cursors'
    """
    detail: dict[str, object] = {"feature": feature}
    if field is None:
        return Refusal(NOT_SUPPORTED, f"a shared topic does not support {feature}", detail)
    message = f"{field}: a shared topic does not support {feature}"
    return Refusal(NOT_SUPPORTED, message, {"field": field, **detail})


def throttled(reason: str) -> Refusal:
    """Refuse a request that there is no room for at this moment."""
    return Refusal(THROTTLED, f"{reason}, retry after 1 s", retry_after_ms=RETRY_AFTER_MS)


def not_ready(
    reason: str, detail: dict[str, object] | None = None, *, is_retry_useful: bool = True
) -> Refusal:
    """Refuse a request that was not started, because a process that it needs is not available."""
    return Refusal(NOT_READY, reason, detail, RETRY_AFTER_MS if is_retry_useful else None)


def no_answer(owner: int | None, *, is_broker: bool = False) -> Refusal:
    """Refuse a request that its owner never received: a shard, a broker, or None for the supervisor."""
    return not_ready(f"{_name_of(owner, is_broker)} does not answer", _detail_of(owner, is_broker))


def cannot_check(limit: str, cause: str) -> Refusal:
    """Refuse what cannot be counted against a limit of the whole server."""
    return not_ready(f"cannot check {limit}: {cause}")


def in_doubt(owner: int | None, advice: str = "", *, is_broker: bool = False) -> Refusal:
    """Refuse a change that its owner received and did not answer, named as in `no_answer`."""
    event = f"{_name_of(owner, is_broker)} stopped before it answered"
    message = f"{event}: the change may or may not have been made{advice}"
    return Refusal(IN_DOUBT, message, _detail_of(owner, is_broker), RETRY_AFTER_MS)


def store_unavailable(cause: str, detail: dict[str, object] | None = None) -> Refusal:
    """Refuse a request for records that only the object store has, while it does not answer."""
    message = f"the object store does not answer, retry after 1 s: {cause}"
    return Refusal(STORE_UNAVAILABLE, message, detail, RETRY_AFTER_MS)


def relocated(name: str) -> Refusal:
    """Refuse a request for a topic that left this shard; its sender asks the present owner instead."""
    return Refusal(RELOCATED, f'topic "{name}" has another shard now', retry_after_ms=RETRY_AFTER_MS)


def shutting_down() -> Refusal:
    return Refusal(SHUTTING_DOWN, "the server is shutting down", retry_after_ms=RETRY_AFTER_MS)


def _name_of(owner: int | None, is_broker: bool) -> str:
    return "the broker" if is_broker else "the supervisor" if owner is None else f"shard {owner}"


def _detail_of(owner: int | None, is_broker: bool) -> dict[str, object] | None:
    return None if owner is None or is_broker else {"shard": owner}
