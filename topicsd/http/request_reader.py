"""Whole requests out of the bytes of a connection, in whatever legal form they come.

The second lane's reading: as strict as the fast lane's, because heads are read by the same code, and able to
take what that one passes on: bodies that are chunked or compressed, and clients that wait for a word first.
A request comes out when all of it is there, so that one that is malformed anywhere never starts.

Must not know: sockets, aiohttp, what is done with a request.
"""

from __future__ import annotations

from typing import NamedTuple

from shared.errors import INVALID_REQUEST, UNSUPPORTED_MEDIA_TYPE, Refusal
from shared.http_head import Fields, refuse_together, refuse_unfinished
from topicsd.http.body_reader import Body, body_of, too_large
from topicsd.http.known_heads import KnownHeads, KnownLine

CONTINUE = "100-continue"


class WholeRequest(NamedTuple):
    known: KnownLine
    fields: Fields
    body: bytes


class RequestReader:
    def __init__(self, heads: KnownHeads, body_bytes_max: int) -> None:
        self._heads = heads
        self._body_bytes_max = body_bytes_max
        self._pieces: list[bytes] = []
        self._head: tuple[KnownLine, Fields] | None = None
        self._body: Body
        self.held = 0
        """Bytes that were fed and did not go into a body yet."""
        self.body_bytes = 0
        """Bytes that went into the body of the request that is being read."""

    def feed(self, data: bytes) -> None:
        self._pieces.append(data)
        self.held += len(data)

    @property
    def is_empty(self) -> bool:
        """Nothing of a next request has come."""
        return self._head is None and not self.held

    @property
    def unfinished(self) -> tuple[KnownLine, Fields] | None:
        """The head of a request whose body is still to come."""
        return self._head

    def next(self) -> WholeRequest | Refusal | None:
        """The next request; None as long as it is not there whole. Behind a refusal nothing can be read."""
        data = b"".join(self._pieces)
        at = 0
        if self._head is None:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._keep(data)
                return refuse_unfinished(data)
            head = self._read_head(data[:end])
            if isinstance(head, Refusal):
                return head
            self._head = head
            self._body = body_of(head[1], self._body_bytes_max)
            self.body_bytes = 0
            at = end + 4
        taken = self._body.feed(data, at)
        if isinstance(taken, Refusal):
            return taken
        self.body_bytes += taken - at
        self._keep(data[taken:])
        if not self._body.is_whole:
            return None
        (known, fields), self._head = self._head, None
        body = self._body.finish() if self.body_bytes else b""
        del self._body
        return body if isinstance(body, Refusal) else WholeRequest(known, fields, body)

    def _keep(self, data: bytes) -> None:
        self._pieces = [data] if data else []
        self.held = len(data)

    def _read_head(self, head: bytes) -> tuple[KnownLine, Fields] | Refusal:
        line_text, _, block = head.partition(b"\r\n")
        known = self._heads.line(line_text)
        if isinstance(known, Refusal):
            return known
        about = self._heads.fields(block)
        if isinstance(about, Refusal):
            return about
        fields = about.fields
        refusal = refuse_together(known.line, fields)
        if refusal is not None:
            return refusal
        if fields.expect not in ("", CONTINUE):
            return Refusal(INVALID_REQUEST, f"expect: only {CONTINUE} is understood")
        if fields.content_encoding not in ("", "identity", "gzip"):
            return Refusal(UNSUPPORTED_MEDIA_TYPE, "content-encoding: only gzip is understood")
        if (fields.content_length or 0) > self._body_bytes_max:
            return too_large(self._body_bytes_max)
        return known, fields
