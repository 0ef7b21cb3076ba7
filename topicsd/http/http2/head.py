"""The head of a request of HTTP/2, read as what it would be in HTTP/1.1; the head of an answer the other way.

`h2` sees to what is special to HTTP/2: names in small letters, pseudo fields, nothing about the connection.
The rest is written down as a line and a block and read by the same code as in the other lanes, which keeps
both in mind. So a request means the same however it comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shared.contract.errors import INVALID_REQUEST, UNSUPPORTED_MEDIA_TYPE, Refusal
from shared.http.body import too_large
from shared.http.head import Fields
from topicsd.http.http1.head_cache import KnownHeads, KnownLine

Header = tuple[bytes, bytes]


class Head(NamedTuple):
    known: KnownLine
    fields: Fields


def read_head(headers: Iterable[Header], heads: KnownHeads, body_bytes_max: int) -> Head | Refusal:
    method = target = authority = b""
    lines = []
    for name, value in headers:
        if not name.startswith(b":"):
            # Where both are sent, `h2` has seen to it that they are equal.
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
    if (fields.content_length or 0) > body_bytes_max:
        return too_large(body_bytes_max)
    return Head(known, fields)


def answer_head(status: int, fields: bytes, length: int | None) -> list[Header]:
    """`fields` are lines as HTTP/1.1 has them, `length` that of the body where it is known."""
    headers: list[Header] = [(b":status", b"%d" % status)]
    for line in fields.split(b"\r\n")[:-1]:
        name, _, value = line.partition(b": ")
        headers.append((name.lower(), value))
    if length is not None:
        headers.append((b"content-length", b"%d" % length))
    return headers
