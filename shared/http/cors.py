"""Cross-origin requests of web pages (CORS): which origins are allowed, and the header fields of answers.

O1  No answer allows credentials: the server has no cookies. A page sends its key itself, in a header field or
    as `?token=`, so `*` reveals nothing to a page that has no key.
O2  The fields depend on the origin alone and not on the endpoint, so a refusal, a stream and an answer that
    another process rendered all have the same ones.
O3  A browser sends a POST of certain content types without a preflight, from any page that is open in it. A
    server without keys would execute it, so it refuses such a request of an origin that is not allowed.
"""

from __future__ import annotations

import re
from typing import Final

from shared.contract.errors import FORBIDDEN, Refusal
from shared.http.head import Fields

ANY: Final = "*"

VARY: Final = b"vary: origin\r\n"
EXPOSED: Final = b"access-control-expose-headers: *\r\n"
# For an answer without a body. `*` does not include authorization. Browsers keep it for at most two hours.
PREFLIGHT: Final = (
    b"content-type: text/plain\r\n"
    b"access-control-allow-methods: DELETE, GET, HEAD, POST, PUT\r\n"
    b"access-control-allow-headers: authorization, *\r\n"
    b"access-control-max-age: 7200\r\n"
)
_ALLOW: Final = b"access-control-allow-origin: "
_PREFLIGHT_ANSWER: Final = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}

# A page sends a POST with these content types, or without one, and without a preflight. The last two are of
# the ping of a link and of the report of a page, which the browser sends.
_PLAIN_TYPES: Final = frozenset(
    (
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "text/ping",
        "application/csp-report",
    )
)

_origin = re.compile(r"([a-z][a-z0-9+.-]*)://((?:[a-z0-9._-]+|\[[0-9a-f:.]+\]))(:[0-9]{1,5})?")
_origin_field = re.compile(rb"\r\norigin:[ \t]*([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE)


class Origins:
    """The origins that the setting allows, as `check_origins` returned it.

    >>> origins = Origins("https://app.example.com")
    >>> origins.fields_for("https://evil.example.com")
    b'vary: origin\\r\\n'
    >>> Origins("").fields_for("https://app.example.com")
    b''
    """

    def __init__(self, text: str = "") -> None:
        self._allowed = frozenset(text.split(",")) if text else frozenset()
        self.is_any = ANY in self._allowed

    def allow(self, origin: str) -> bool:
        return self.is_any or origin in self._allowed

    def admit(self, fields: Fields) -> bool:
        """Return whether the origin is absent, since only browsers send it, the server's own, or allowed."""
        host = (fields.host or b"").decode().lower()
        own = (f"http://{host}", f"https://{host}")
        return not fields.origin or fields.origin in own or self.allow(fields.origin)

    def refuse_page(self, method: str, fields: Fields) -> Refusal | None:
        """Refuse a POST to a server without keys that a page of an origin that is not allowed could send.

        >>> fields = Fields(host=b"localhost:4000", content_type="text/plain", origin="https://evil.example.com")
        >>> Origins("").refuse_page("POST", fields).code
        'forbidden'
        >>> Origins("https://evil.example.com").refuse_page("POST", fields)
        """
        if not fields.origin or method != "POST":
            return None
        kind = fields.content_type.partition(";")[0].strip().lower()
        return None if kind not in _PLAIN_TYPES or self.admit(fields) else foreign_origin()

    def fields_for(self, origin: str) -> bytes:
        """Return the header fields of every answer to a request of that origin; none without an origin."""
        if not origin or not self._allowed:
            return b""
        if self.is_any:
            return b"%b*\r\n%b" % (_ALLOW, EXPOSED)
        if origin not in self._allowed:
            return VARY
        return b"%b%b\r\n%b%b" % (_ALLOW, origin.encode("latin-1"), EXPOSED, VARY)

    def answered(self, request: bytes, answer: bytes) -> bytes:
        """Return the answer that ends a connection with the fields for the origin in a request's head.

        A preflight of an allowed origin is answered instead: its page then reads the answer to its request.
        """
        match = _origin_field.search(request) if self._allowed else None
        if match is None:
            return answer
        fields = self.fields_for(match[1].decode("latin-1").lower())
        if request.startswith(b"OPTIONS ") and is_allowed(fields):
            return with_fields(_PREFLIGHT_ANSWER, fields + PREFLIGHT)
        return with_fields(answer, fields)


def foreign_origin() -> Refusal:
    message = (
        "origin: must be this server: another origin needs a key, and the server has no keys; "
        "TOPICS_CORS_ORIGINS allows origins"
    )
    return Refusal(FORBIDDEN, message, {"field": "origin"})


def is_allowed(fields: bytes) -> bool:
    """Return whether the fields of an answer allow the origin of its request."""
    return fields.startswith(_ALLOW)


def with_fields(answer: bytes, fields: bytes) -> bytes:
    """Return an HTTP/1.1 answer with more header fields, after its first line."""
    line, end, rest = answer.partition(b"\r\n")
    return b"".join([line, end, fields, rest])


def check_origins(text: str) -> str:
    """Return the setting in the form in which browsers send origins; ValueError names a wrong entry.

    >>> check_origins("HTTPS://App.example.com:443, http://localhost:3000")
    'https://app.example.com,http://localhost:3000'
    >>> check_origins("https://app.example.com/")
    Traceback (most recent call last):
    ValueError: entry 1: must be an origin such as https://app.example.com, without a path, or *
    """
    return ",".join(_check(number, one) for number, one in enumerate(text.split(","), 1)) if text else ""


def _check(number: int, entry: str) -> str:
    origin = entry.strip().lower()
    if origin == ANY:
        return ANY
    match = _origin.fullmatch(origin)
    if match is None:
        raise ValueError(
            f"entry {number}: must be an origin such as https://app.example.com, without a path, or *"
        )
    scheme, host, port = match.groups()
    return f"{scheme}://{host}{'' if port == _DEFAULT_PORTS.get(scheme) else port or ''}"
