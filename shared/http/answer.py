"""A refusal as an HTTP response: the same bytes from every process and protocol."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from shared.contract.errors import STATUS, Refusal

REASONS: Final = {
    200: b"OK",
    201: b"Created",
    400: b"Bad Request",
    401: b"Unauthorized",
    403: b"Forbidden",
    404: b"Not Found",
    405: b"Method Not Allowed",
    406: b"Not Acceptable",
    408: b"Request Timeout",
    409: b"Conflict",
    410: b"Gone",
    413: b"Content Too Large",
    414: b"URI Too Long",
    415: b"Unsupported Media Type",
    422: b"Unprocessable Content",
    426: b"Upgrade Required",
    429: b"Too Many Requests",
    431: b"Request Header Fields Too Large",
    500: b"Internal Server Error",
    501: b"Not Implemented",
    503: b"Service Unavailable",
    504: b"Gateway Timeout",
    505: b"HTTP Version Not Supported",
    507: b"Insufficient Storage",
}

CLOSE: Final = b"connection: close\r\n"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def refusal_body(refusal: Refusal) -> dict[str, object]:
    """Return the body of an error response."""
    return {"error": error_of(refusal)}


def error_of(refusal: Refusal) -> dict[str, object]:
    error: dict[str, object] = {"code": refusal.code, "message": refusal.message}
    detail = dict(refusal.detail or {})
    if refusal.retry_after_ms is not None:
        detail["retry_after_ms"] = refusal.retry_after_ms
    if detail:
        error["detail"] = detail
    return error


def refusal_in(body: bytes) -> Refusal:
    """Return the refusal that another process rendered.

    >>> one = Refusal("throttled", "too much", {"limit": "max_topics"}, retry_after_ms=200)
    >>> refusal_in(_encode(refusal_body(one))) == one
    True
    """
    error = _decode(body)["error"]
    detail = dict(error.get("detail", {}))
    retry_after_ms = detail.pop("retry_after_ms", None)
    return Refusal(error["code"], error["message"], detail or None, retry_after_ms)


def refusal_fields(refusal: Refusal) -> bytes:
    """Return the header fields of a refusal, each as a line.

    >>> refusal_fields(Refusal("not_ready", "", retry_after_ms=1200))
    b'retry-after: 2\\r\\n'
    """
    fields = b""
    if refusal.retry_after_ms is not None:
        fields += b"retry-after: %d\r\n" % max(1, -(-refusal.retry_after_ms // 1000))
    detail = refusal.detail or {}
    if "allow" in detail:
        fields += b"allow: %b\r\n" % str(detail["allow"]).encode()
    if "upgrade" in detail:
        fields += b"upgrade: %b\r\n" % str(detail["upgrade"]).encode()
    if "sec_websocket_version" in detail:
        fields += b"sec-websocket-version: %b\r\n" % str(detail["sec_websocket_version"]).encode()
    if "www_authenticate" in detail:
        fields += b"www-authenticate: %b\r\n" % str(detail["www_authenticate"]).encode()
    return fields


def closing_refusal(refusal: Refusal) -> bytes:
    """Return a complete response, after which the connection is closed."""
    status = STATUS[refusal.code]
    body = _encode(refusal_body(refusal)) + b"\n"
    head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n" % (status, REASONS[status])
    length = b"content-length: %d\r\n\r\n" % len(body)
    return b"".join([head, refusal_fields(refusal), CLOSE, length, body])
