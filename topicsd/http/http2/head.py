"""HTTP/2 heads: requests read as their HTTP/1.1 equivalent, responses written the other way.

`h2` checks what is specific to HTTP/2: lower-case names, pseudo fields, no connection-specific fields. The
rest is written as a request line and a header block and parsed by the same code as in the other protocols,
with its cache. So a request means the same in every protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shared.contract.errors import INVALID_REQUEST, UNSUPPORTED_MEDIA_TYPE, Refusal
from shared.http.body import too_large
from shared.http.content_digest import digests_of
from shared.http.head import Fields
from topicsd.http.http1.head_cache import HeadCache, KnownLine

Header = tuple[bytes, bytes]


class Head(NamedTuple):
    known_line: KnownLine
    fields: Fields


def read_head(headers: Iterable[Header], heads: HeadCache) -> Head | Refusal:
    method = target = authority = b""
    lines = []
    for name, value in headers:
        if not name.startswith(b":"):
            # If both are sent, `h2` has checked that they are equal.
            if name != b"host" or not authority:
                lines.append(b"%b: %b" % (name, value))
        elif name == b":method":
            method = value
        elif name == b":path":
            target = value
        elif name == b":authority":
            authority = value
            lines.append(b"host: %b" % value)
    # CONNECT has no path.
    known = heads.line(b"%b %b HTTP/1.1" % (method, target or authority))
    if isinstance(known, Refusal):
        return known
    if known.line.authority:
        return Refusal(INVALID_REQUEST, "the target of the request must be a path")
    about = heads.fields(b"\r\n".join(lines))
    if isinstance(about, Refusal):
        return about
    fields = about.fields
    if fields.content_encoding not in ("", "identity", "gzip"):
        return Refusal(UNSUPPORTED_MEDIA_TYPE, "content-encoding: must be gzip")
    if fields.content_digest:
        digests = digests_of(fields.content_digest)
        if isinstance(digests, Refusal):
            return digests
    body_bytes_max = heads.body_bytes_max(known, about)
    if (fields.content_length or 0) > body_bytes_max:
        return too_large(body_bytes_max)
    return Head(known, fields)


def answer_head(status: int, fields: bytes, length: int | None) -> list[Header]:
    """Return the response headers. `fields` are HTTP/1.1 lines, `length` is that of the body if known."""
    headers: list[Header] = [(b":status", b"%d" % status)]
    for line in fields.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        headers.append((name.lower(), value))
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    return headers
