"""What request lines and header blocks mean, remembered by their bytes.

A client repeats both: the strict reading of a head costs as much as the append behind it, a look into a
table next to nothing. What is remembered is bounded, in number and in bytes. It is structs all the way down,
since a field of one is read at a tenth of what a named tuple asks for it.

Must not know: connections, bodies.
"""

from __future__ import annotations

import msgspec

from shared.errors import Refusal
from shared.http_head import Fields, RequestLine, parse_fields, parse_line
from shared.routes import Match, resolve
from topicsd.http.dispatch import Dispatch

REMEMBERED_MAX = 8192
REMEMBERED_BYTES_MAX = 1024


class KnownLine(msgspec.Struct, frozen=True):
    line: RequestLine
    match: Match | Refusal
    owner: int | None
    is_append: bool
    is_plain: bool
    """HTTP/1.1, a path, no HEAD, no stream."""
    is_stream: bool


class KnownFields(msgspec.Struct, frozen=True):
    fields: Fields
    is_plain: bool
    """With a plain line nothing more is to be asked."""
    is_coded: bool
    """The body is chunked or compressed, or waits for a word."""


class KnownHeads:
    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self._lines: dict[bytes, KnownLine] = {}
        self._blocks: dict[bytes, KnownFields] = {}
        self.known_line = self._lines.get
        """What is remembered of a line; None is to be learned."""
        self.known_fields = self._blocks.get

    def line(self, text: bytes) -> KnownLine | Refusal:
        return self.known_line(text) or self.learn_line(text)

    def fields(self, text: bytes) -> KnownFields | Refusal:
        return self.known_fields(text) or self.learn_fields(text)

    def learn_line(self, text: bytes) -> KnownLine | Refusal:
        line = parse_line(text)
        if isinstance(line, Refusal):
            return line
        match = resolve("GET" if line.method == "HEAD" else line.method, line.path)
        is_match = isinstance(match, Match)
        is_stream = is_match and match.route.is_stream  # type: ignore[union-attr]
        known = KnownLine(
            line,
            match,
            self._dispatch.owner_of(match) if isinstance(match, Match) else None,
            is_match and match.route.operation == "append",  # type: ignore[union-attr]
            line.minor_version == 1 and not line.authority and line.method != "HEAD" and not is_stream,
            is_stream,
        )
        # A line of a stream is sent once, and may have a key in it.
        if len(text) <= REMEMBERED_BYTES_MAX and not (is_match and match.route.takes_token):  # type: ignore[union-attr]
            if len(self._lines) >= REMEMBERED_MAX:
                self._lines.clear()
            self._lines[text] = known
        return known

    def learn_fields(self, text: bytes) -> KnownFields | Refusal:
        fields = parse_fields(text)
        if isinstance(fields, Refusal):
            return fields
        is_coded = bool(fields.is_chunked or fields.content_encoding not in ("", "identity") or fields.expect)
        is_plain = fields.host is not None and not is_coded and not fields.connection
        known = KnownFields(fields, is_plain, is_coded)
        if len(text) <= REMEMBERED_BYTES_MAX:
            if len(self._blocks) >= REMEMBERED_MAX:
                self._blocks.clear()
            self._blocks[text] = known
        return known
