"""The strict parser of HTTP/1.1 request heads: it refuses input with more than one meaning.

The supervisor and the workers both parse heads with this module, so the process that places a request and the
process that answers it agree on its meaning. The request line and the block of fields are parsed separately,
because clients repeat them: callers cache the result by the bytes of either.

A refusal here leaves the framing in doubt, so the connection is closed after it.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from shared.contract.errors import (
    HEADERS_TOO_LARGE,
    HTTP_VERSION_NOT_SUPPORTED,
    INVALID_REQUEST,
    METHOD_NOT_ALLOWED,
    NOT_IMPLEMENTED,
    URI_TOO_LONG,
    Refusal,
)
from shared.text.message import size_text

LINE_BYTES_MAX: Final = 8 << 10
BLOCK_BYTES_MAX: Final = 32 << 10
FIELDS_MAX: Final = 100
CONTENT_LENGTH_DIGITS_MAX: Final = 18

METHODS: Final = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"})
NEVER_ALLOWED: Final = frozenset({b"CONNECT", b"TRACE"})

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_LINE = re.compile(rb"(" + _TOKEN + rb") ([!-\"$-~]+) HTTP/(\d)\.(\d)")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_HOST = re.compile(rb"(?:[A-Za-z0-9._~%!$&'()*+;=-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_ABSOLUTE = re.compile(rb"https?://([^/?#@]*)(/[^#]*)?", re.IGNORECASE)
_LENGTH = re.compile(rb"0|[1-9][0-9]*")
_NOT_REPEATED = frozenset(
    b"host content-length transfer-encoding content-type content-encoding content-digest authorization "
    b"idempotency-key expect upgrade last-event-id origin sec-websocket-key sec-websocket-version".split()
)
_EVENT_PREFIX: Final = b"ce-"
# A request with one of these fields is a CloudEvent in the binary mode.
_EVENT_NAMES: Final = frozenset((b"ce-specversion", b"ce-id"))


class RequestLine(msgspec.Struct, frozen=True):
    """The parsed first line. `path` and `query` are as sent: nothing is decoded."""

    method: str
    path: str
    query: str
    minor_version: int
    authority: bytes
    """Host of an absolute target; empty without one."""


class Fields(msgspec.Struct, frozen=True):
    """The header fields that the server uses; a text is empty when the field was not sent."""

    host: bytes | None = None
    content_length: int | None = None
    is_chunked: bool = False
    content_type: str = ""
    content_encoding: str = ""
    accept: str = ""
    accept_encoding: str = ""
    authorization: bytes | None = None
    idempotency_key: str = ""
    last_event_id: str = ""
    expect: str = ""
    connection: frozenset[str] = frozenset()
    upgrade: str = ""
    origin: str = ""
    websocket_key: str = ""
    websocket_version: str = ""
    sent_key: bytes | None = None
    """Digest of the key (`sent_key_of` in `api_keys.py`), kept instead of `authorization`."""
    content_digest: str = ""
    event_attributes: tuple[tuple[str, str], ...] = ()
    """Names and values, as sent, of the fields `ce-…` of a CloudEvent in the binary mode, without `ce-`."""
    cors: bytes = b""
    """Header fields of every answer to the request, for a page of the origin (`cors.py`)."""


NO_FIELDS: Final = Fields()


def parse_line(line: bytes) -> RequestLine | Refusal:
    """Parse the request line, without its CRLF."""
    if len(line) > LINE_BYTES_MAX:
        return _refuse_flaw(line[:LINE_BYTES_MAX]) or _too_long()
    match = _LINE.fullmatch(line)
    if match is None:
        return Refusal(INVALID_REQUEST, "the request line must be `METHOD target HTTP/1.1`")
    method, target, major, minor = match.groups()
    if (major, minor) not in ((b"1", b"1"), (b"1", b"0")):
        version = f"{major.decode()}.{minor.decode()}"
        return Refusal(HTTP_VERSION_NOT_SUPPORTED, f"HTTP/{version} is not supported, send HTTP/1.1")
    if method in NEVER_ALLOWED:
        allowed = "DELETE, GET, HEAD, POST, PUT"
        return Refusal(METHOD_NOT_ALLOWED, f"{method.decode()} is not allowed", {"allow": allowed})
    if method not in METHODS:
        return Refusal(NOT_IMPLEMENTED, f"unknown method {method.decode()}")
    authority = b""
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute is None:
            return Refusal(INVALID_REQUEST, "the target of the request must be a path")
        authority, target = absolute[1], absolute[2] or b"/"
    path, _, query = target.partition(b"?")
    return RequestLine(method.decode(), path.decode(), query.decode(), int(minor), authority)


def parse_fields(block: bytes) -> Fields | Refusal:
    """Parse the header block: lines separated by CRLF, without the CRLF of the last one."""
    if len(block) > BLOCK_BYTES_MAX:
        return _refuse_flaw(block[:BLOCK_BYTES_MAX]) or _too_many_bytes()
    lines = block.split(b"\r\n") if block else []
    if len(lines) > FIELDS_MAX:
        return _too_many_fields(lines)
    values: dict[bytes, bytes] = {}
    for line in lines:
        # No match: the line begins with a blank, has one before its colon, or holds a bare CR, LF or NUL.
        match = _FIELD.fullmatch(line)
        if match is None:
            shown = ascii(line[:64].decode("latin-1"))
            return Refusal(INVALID_REQUEST, f"a header must be `name: value`, got {shown}")
        name, value = match[1].lower(), match[2].rstrip(b" \t")
        if name in values:
            if name in _NOT_REPEATED or name.startswith(_EVENT_PREFIX):
                return Refusal(INVALID_REQUEST, f"{name.decode()}: must be sent once")
            value = values[name] + b", " + value
        values[name] = value
    return _fields_of(values)


def refuse_unfinished(head: bytes) -> Refusal | None:
    """Refuse an incomplete head that cannot become valid, so that its end is not awaited.

    The first flaw in the head decides, so the result does not depend on how many bytes were read at once.
    """
    line_end = head.find(b"\r\n", 0, LINE_BYTES_MAX + 2)
    if line_end < 0:
        # The CR of the line's end may have arrived already.
        too_long = _too_long() if len(head) > LINE_BYTES_MAX + 1 else None
        return _refuse_flaw(head[:LINE_BYTES_MAX]) or too_long
    refusal = _refuse_flaw(head[:line_end]) or _refuse_unfinished_fields(head[line_end + 2 :])
    if refusal is None:
        return None
    line = parse_line(head[:line_end])
    return line if isinstance(line, Refusal) else refusal


def _refuse_unfinished_fields(block: bytes) -> Refusal | None:
    if block.count(b"\r\n") > FIELDS_MAX:
        return _too_many_fields(block.split(b"\r\n", FIELDS_MAX))
    # The end of the head follows the last field, and may have arrived in part.
    return _refuse_flaw(block[:BLOCK_BYTES_MAX]) or (
        _too_many_bytes() if len(block) > BLOCK_BYTES_MAX + 3 else None
    )


def refuse_together(line: RequestLine, fields: Fields) -> Refusal | None:
    """Refuse a request line and fields that contradict each other."""
    if line.minor_version == 1 and fields.host is None:
        return Refusal(INVALID_REQUEST, "host: is required")
    if line.authority and fields.host is not None and line.authority.lower() != fields.host.lower():
        return Refusal(INVALID_REQUEST, "host: must be the host of the target")
    if line.minor_version == 0 and fields.is_chunked:
        return Refusal(INVALID_REQUEST, "transfer-encoding: requires HTTP/1.1")
    return None


def keeps_alive(line: RequestLine, fields: Fields) -> bool:
    """Return whether the connection stays open after the response."""
    return "close" not in fields.connection if line.minor_version else "keep-alive" in fields.connection


def _refuse_flaw(part: bytes) -> Refusal | None:
    """Refuse bytes that no head may contain. Counting is far faster than locating them."""
    pairs = part.count(b"\r\n")
    # The LF after a final CR may not have arrived yet.
    is_flawed = (
        part.count(b"\n") != pairs or part.count(b"\r") != pairs + part.endswith(b"\r") or b"\0" in part
    )
    if not is_flawed:
        return None
    return Refusal(INVALID_REQUEST, "the request head must not contain a bare CR, a bare LF or a NUL")


def _too_long() -> Refusal:
    return Refusal(URI_TOO_LONG, f"the request line must be at most {size_text(LINE_BYTES_MAX)}")


def _too_many_bytes() -> Refusal:
    return Refusal(HEADERS_TOO_LARGE, f"the headers must be at most {size_text(BLOCK_BYTES_MAX)}")


def _too_many_fields(lines: list[bytes]) -> Refusal:
    """Refuse the number of fields, unless the first `FIELDS_MAX` lines have a flaw."""
    return _refuse_flaw(b"\r\n".join(lines[:FIELDS_MAX])) or Refusal(
        HEADERS_TOO_LARGE, f"the headers must be at most {FIELDS_MAX} fields"
    )


def _fields_of(values: dict[bytes, bytes]) -> Fields | Refusal:
    host = values.get(b"host")
    if host is not None and _HOST.fullmatch(host) is None:
        return Refusal(INVALID_REQUEST, "host: must be a host name or an address, with an optional port")
    coding = values.get(b"transfer-encoding")
    if coding is not None and coding.lower() != b"chunked":
        return Refusal(INVALID_REQUEST, "transfer-encoding: must be chunked")
    length_text = values.get(b"content-length")
    if length_text is not None:
        if coding is not None:
            return Refusal(INVALID_REQUEST, "content-length: must not be sent with transfer-encoding")
        if _LENGTH.fullmatch(length_text) is None or len(length_text) > CONTENT_LENGTH_DIGITS_MAX:
            return Refusal(INVALID_REQUEST, "content-length: must be an integer in plain digits")
    try:
        idempotency_key = values.get(b"idempotency-key", b"").decode()
    except UnicodeDecodeError:
        return Refusal(INVALID_REQUEST, "idempotency-key: must be UTF-8")
    options = values.get(b"connection", b"").lower().decode("latin-1").split(",")
    return Fields(
        host=host,
        content_length=None if length_text is None else int(length_text),
        is_chunked=coding is not None,
        content_type=_text(values, b"content-type"),
        content_encoding=_text(values, b"content-encoding").lower(),
        accept=_text(values, b"accept"),
        accept_encoding=_text(values, b"accept-encoding").lower(),
        authorization=values.get(b"authorization"),
        idempotency_key=idempotency_key,
        expect=_text(values, b"expect").lower(),
        connection=frozenset(option.strip() for option in options if option.strip()),
        upgrade=_text(values, b"upgrade").lower(),
        last_event_id=_text(values, b"last-event-id"),
        origin=_text(values, b"origin").lower(),
        websocket_key=_text(values, b"sec-websocket-key"),
        websocket_version=_text(values, b"sec-websocket-version"),
        content_digest=_text(values, b"content-digest"),
        event_attributes=_event_attributes(values) if not _EVENT_NAMES.isdisjoint(values) else (),
    )


def _event_attributes(values: dict[bytes, bytes]) -> tuple[tuple[str, str], ...]:
    prefix = len(_EVENT_PREFIX)
    names = [name for name in values if name.startswith(_EVENT_PREFIX)]
    return tuple((name[prefix:].decode(), _text(values, name)) for name in names)


def _text(values: dict[bytes, bytes], name: bytes) -> str:
    return values.get(name, b"").decode("latin-1")
