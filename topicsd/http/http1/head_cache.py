"""A cache of parsed request lines and header blocks, by their bytes.

Clients repeat both: the strict parsing of a head costs as much as the append after it, a table lookup
almost nothing. The cache is bounded, in entries and in bytes for each. Its entries are structs: attribute
access is 10x cheaper than on named tuples.

A line is cached with the owner of its topic, so a change of the placement empties the cache of lines. A
request whose body arrives after its head keeps its line meanwhile, and gets the owner of that time from
`placed`.

No client's key is stored: a block with a key is found by its keyed digest, and its entry holds only the
digest of the key that authentication needs anyway. A line with a token is not cached.
"""

from __future__ import annotations

import os
from hashlib import sha256

import msgspec

from shared.contract.api_keys import sent_key_of
from shared.contract.endpoints import Match, resolve
from shared.contract.errors import Refusal
from shared.http.head import Fields, RequestLine, parse_fields, parse_line
from topicsd.service.call import BrowserCall, HttpCall
from topicsd.service.dispatch import Dispatch
from topicsd.service.records.record_body import is_lines

REMEMBERED_MAX = 8192
REMEMBERED_BYTES_MAX = 1024
SECRET_BYTES = 32
UNBOUNDED_BYTES = 1 << 62


class KnownLine(msgspec.Struct, frozen=True):
    line: RequestLine
    match: Match | Refusal
    owner: int | None
    is_append: bool
    is_record: bool
    """The body is a record; `is_append` is true too."""
    is_common_line: bool
    """HTTP/1.1 with a path, not HEAD."""


class KnownFields(msgspec.Struct, frozen=True):
    fields: Fields
    is_common_block: bool
    """With a common line, no further checks are needed."""
    is_coded: bool
    """The body is chunked, compressed, has a digest, or expects `100 Continue`; or it may be lines."""
    is_lines: bool = False
    """The content type is that of lines, which are appended as they arrive."""
    call_type: type[HttpCall] = HttpCall
    """The type of the call of a request with these fields."""


class HeadCache:
    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch
        self.placement = dispatch.placement
        self._lines: dict[bytes, KnownLine] = {}
        self._blocks: dict[bytes, KnownFields] = {}
        self.known_line = self._lines.get
        """The lookup of a cached line; None if the line must be parsed."""
        self.known_fields = self._blocks.get
        """The lookup of a cached block without a key. A block with a key is found by `fields` only."""
        self._sealed: dict[bytes, KnownFields] = {}
        """By the keyed digest of the block."""
        self._secret = os.urandom(SECRET_BYTES)
        self.placement.call_on_change(self._lines.clear)

    def placed(self, known: KnownLine) -> KnownLine:
        """Return the line of an earlier request head with the present owner of its topic."""
        if isinstance(known.match, Refusal) or known.owner is None:
            return known
        owner = self._dispatch.owner_of(known.match)
        return known if owner == known.owner else msgspec.structs.replace(known, owner=owner)

    def body_bytes_max(self, known: KnownLine, known_fields: KnownFields | None = None) -> int:
        if known.is_record and known_fields is not None and known_fields.is_lines:
            return UNBOUNDED_BYTES
        handlers = self._dispatch.handlers
        return handlers.shard.spool.record_bytes_max if known.is_record else handlers.body_bytes_max

    def line(self, text: bytes) -> KnownLine | Refusal:
        return self.known_line(text) or self.parse_line(text)

    def fields(self, text: bytes) -> KnownFields | Refusal:
        return self.known_fields(text) or self._sealed.get(self._digest(text)) or self.learn_fields(text)

    def parse_line(self, text: bytes) -> KnownLine | Refusal:
        line = parse_line(text)
        if isinstance(line, Refusal):
            return line
        match = resolve("GET" if line.method == "HEAD" else line.method, line.path)
        is_match = isinstance(match, Match)
        known = KnownLine(
            line,
            match,
            self._dispatch.owner_of(match) if isinstance(match, Match) else None,
            is_match and match.endpoint.operation in ("append", "append_record"),  # type: ignore[union-attr]
            is_match and match.endpoint.operation == "append_record",  # type: ignore[union-attr]
            line.minor_version == 1 and not line.authority and line.method != "HEAD",
        )
        has_token = b"token" in text or (is_match and match.endpoint.takes_token)  # type: ignore[union-attr]
        if len(text) <= REMEMBERED_BYTES_MAX and not has_token:
            if len(self._lines) >= REMEMBERED_MAX:
                self._lines.clear()
            self._lines[text] = known
        return known

    def learn_fields(self, text: bytes) -> KnownFields | Refusal:
        fields = parse_fields(text)
        if isinstance(fields, Refusal):
            return fields
        cors = self._dispatch.origins.fields_for(fields.origin)
        if cors:
            fields = msgspec.structs.replace(fields, cors=cors)
        is_encoded = fields.is_chunked or fields.content_encoding not in ("", "identity")
        has_lines = is_lines(fields)
        is_coded = bool(is_encoded or fields.expect or fields.content_digest or has_lines)
        is_common_block = fields.host is not None and not is_coded and not fields.connection and not cors
        call_type = BrowserCall if cors else HttpCall
        if fields.authorization is None:
            known = KnownFields(fields, is_common_block, is_coded, has_lines, call_type)
            self._store(self._blocks, text, text, known)
            return known
        sent_key = sent_key_of(fields.authorization)
        fields = msgspec.structs.replace(fields, authorization=None, sent_key=sent_key)
        known = KnownFields(fields, is_common_block, is_coded, has_lines, call_type)
        self._store(self._sealed, self._digest(text), text, known)
        return known

    def _store(self, entries: dict[bytes, KnownFields], key: bytes, text: bytes, known: KnownFields) -> None:
        if len(text) <= REMEMBERED_BYTES_MAX:
            if len(entries) >= REMEMBERED_MAX:
                entries.clear()
            entries[key] = known

    def _digest(self, text: bytes) -> bytes:
        return sha256(self._secret + text).digest()
