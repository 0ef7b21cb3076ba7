"""Readers of request bodies in every legal form: sized or chunked, plain or compressed.

B1  Strict: a chunk size is plain hex digits, every line ends with CRLF, and a trailer is a well-formed field
    that does not concern the framing. Trailers and chunk extensions are dropped.
B2  Bounded: the decompressed body is refused as soon as it exceeds its maximum. Lines are short, and the
    framing may not outweigh the body.
B3  Linear: every byte is examined once, however the body is split on arrival.
"""

from __future__ import annotations

import io
import re
import zlib
from typing import Final, Protocol

from shared.contract.errors import (
    HEADERS_TOO_LARGE,
    INVALID_REQUEST,
    PAYLOAD_TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    Refusal,
)
from shared.http.content_digest import DigestSink, digests_of
from shared.http.head import Fields
from shared.runtime.body_memory import BodyBuffer, SharedBody
from shared.text.message import size_text

CHUNK_LINE_BYTES_MAX: Final = 256
TRAILER_BYTES_MAX: Final = 8 << 10
# Framing bytes allowed for chunks besides their data: a client that sends single bytes may not send many.
FRAMING_BYTES_FREE: Final = 64 << 10
FRAMING_FACTOR_MAX: Final = 2
# Enough bytes of a dropped body to decide whether it is empty or an empty object.
KEPT_BYTES_MAX: Final = 64
_INFLATED_AT_ONCE: Final = 256 << 10
_GZIP_WINDOW: Final = 31
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[\t -~\x80-\xff]*)?")
_TRAILER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[^\x00-\x08\x0a-\x1f\x7f]*")
_NO_TRAILERS = frozenset(b"content-length transfer-encoding host".split())


def too_large(bytes_max: int) -> Refusal:
    message = f"the body must be at most {size_text(bytes_max)}"
    return Refusal(PAYLOAD_TOO_LARGE, message, {"max": bytes_max})


class BodySink(Protocol):
    """The receiver of the bytes of a body, without their framing."""

    def write(self, data: bytes) -> Refusal | None: ...

    def finish(self) -> bytes | SharedBody | Refusal: ...


class PlainSink:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._body = io.BytesIO()

    def write(self, data: bytes) -> Refusal | None:
        if self._body.tell() + len(data) > self._bytes_max:
            return too_large(self._bytes_max)
        self._body.write(data)
        return None

    def finish(self) -> bytes | Refusal:
        return self._body.getvalue()


class SharedSink:
    """Gather a body that another process decodes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._body = BodyBuffer()

    def write(self, data: bytes) -> Refusal | None:
        if self._body.tell() + len(data) > self._bytes_max:
            return too_large(self._bytes_max)
        self._body.write(data)
        return None

    def finish(self) -> bytes | SharedBody | Refusal:
        return self._body.finish()


class DroppedSink:
    """The sink of an unused body: bounded as any other, and only its first bytes are kept."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._left = bytes_max
        self._start = b""

    def write(self, data: bytes) -> Refusal | None:
        self._left -= len(data)
        self._start = (self._start + data[:KEPT_BYTES_MAX])[:KEPT_BYTES_MAX]
        return too_large(self._bytes_max) if self._left < 0 else None

    def finish(self) -> bytes | Refusal:
        return self._start


class GzipSink:
    def __init__(self, plain: BodySink) -> None:
        self._plain = plain
        self._inflate = zlib.decompressobj(_GZIP_WINDOW)

    def write(self, data: bytes) -> Refusal | None:
        if self._inflate.eof:
            return _not_gzip("data follows its end")
        while data:
            try:
                inflated = self._inflate.decompress(data, _INFLATED_AT_ONCE)
            except zlib.error:
                return _not_gzip("it is damaged")
            refusal = self._plain.write(inflated)
            if refusal is not None:
                return refusal
            data = self._inflate.unconsumed_tail
        return _not_gzip("data follows its end") if self._inflate.unused_data else None

    def finish(self) -> bytes | SharedBody | Refusal:
        return self._plain.finish() if self._inflate.eof else _not_gzip("it is truncated")


class LengthBody:
    def __init__(self, length: int, sink: BodySink) -> None:
        self._left = length
        self._sink = sink

    @property
    def is_whole(self) -> bool:
        return self._left == 0

    def feed(self, data: bytes, at: int) -> int | Refusal:
        """Consume the body's bytes in `data` from `at`; return the offset of the rest."""
        part = data[at : at + self._left]
        self._left -= len(part)
        return self._sink.write(part) or at + len(part)

    def finish(self) -> bytes | SharedBody | Refusal:
        return self._sink.finish()


class ChunkedBody:
    def __init__(self, sink: BodySink) -> None:
        self._sink = sink
        self._left = 0
        self._line = b""
        self._is_after_data = False
        self._is_after_chunks = False
        self._framing_bytes = 0
        self._trailer_bytes = 0
        self._data_bytes = 0
        self._refusal: Refusal | None = None
        self.is_whole = False

    def feed(self, data: bytes, at: int) -> int | Refusal:
        """Consume the body's bytes in `data` from `at`; return the offset of the rest.

        After a refusal all bytes are refused: it is not known where a chunk begins.
        """
        if self._refusal is not None:
            return self._refusal
        while at < len(data) and not self.is_whole:
            if self._left:
                part = data[at : at + self._left]
                self._left -= len(part)
                self._data_bytes += len(part)
                self._is_after_data = self._left == 0
                refusal = self._sink.write(part)
                at += len(part)
            else:
                line_max = TRAILER_BYTES_MAX if self._is_after_chunks else CHUNK_LINE_BYTES_MAX
                room = line_max + 2 - len(self._line)
                end = data.find(b"\n", at, at + room)
                part_end = min(at + room, len(data)) if end < 0 else end + 1
                self._line += data[at:part_end]
                at = part_end
                refusal = self._take_line(self._line) if end >= 0 else self._refuse_length(line_max)
            if refusal is not None:
                self._refusal = refusal
                return refusal
        return at

    def finish(self) -> bytes | SharedBody | Refusal:
        return self._sink.finish()

    def _refuse_length(self, line_max: int) -> Refusal | None:
        """Refuse an incomplete line that is already too long."""
        if len(self._line) < line_max + 2:
            return None
        if self._is_after_chunks:
            return _trailers_too_large()
        return Refusal(INVALID_REQUEST, f"a line of the chunked body must be at most {line_max} bytes")

    def _take_line(self, line: bytes) -> Refusal | None:
        self._line = b""
        self._framing_bytes += len(line)
        if not line.endswith(b"\r\n"):
            return Refusal(INVALID_REQUEST, "a line of the chunked body must end with CRLF")
        line = line[:-2]
        if self._is_after_data:
            self._is_after_data = False
            return Refusal(INVALID_REQUEST, "a chunk must have the announced size") if line else None
        if self._is_after_chunks:
            return self._take_trailer(line)
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            return Refusal(INVALID_REQUEST, "the size of a chunk must be in hex digits")
        if self._framing_bytes > FRAMING_BYTES_FREE + FRAMING_FACTOR_MAX * self._data_bytes:
            return Refusal(INVALID_REQUEST, "the chunks must be larger: their framing outweighs the data")
        self._left = int(match[1], 16)
        self._is_after_chunks = self._left == 0
        return None

    def _take_trailer(self, line: bytes) -> Refusal | None:
        if not line:
            self.is_whole = True
            return None
        self._trailer_bytes += len(line)
        if self._trailer_bytes > TRAILER_BYTES_MAX:
            return _trailers_too_large()
        match = _TRAILER.fullmatch(line)
        if match is None or match[1].lower() in _NO_TRAILERS:
            return Refusal(
                INVALID_REQUEST,
                "a trailer of the chunked body must be a well-formed field that does not concern the framing",
            )
        return None


Body = LengthBody | ChunkedBody


def refuse_coding(fields: Fields, bytes_max: int) -> Refusal | None:
    """Return the refusal of a body that must not be read at all, or None."""
    if fields.expect not in ("", "100-continue"):
        return Refusal(INVALID_REQUEST, "expect: must be 100-continue")
    if fields.content_encoding not in ("", "identity", "gzip"):
        return Refusal(UNSUPPORTED_MEDIA_TYPE, "content-encoding: must be gzip")
    if fields.content_digest:
        digests = digests_of(fields.content_digest)
        if isinstance(digests, Refusal):
            return digests
    return too_large(bytes_max) if (fields.content_length or 0) > bytes_max else None


def sink_of(fields: Fields, plain: BodySink) -> BodySink:
    """Return the sink of a body as it is sent; `plain` gets it decompressed."""
    sink = GzipSink(plain) if fields.content_encoding == "gzip" else plain
    if not fields.content_digest:
        return sink
    digests = digests_of(fields.content_digest)
    assert not isinstance(digests, Refusal), "refuse_coding refuses it"
    return DigestSink(sink, digests)


def body_of(fields: Fields, plain: BodySink) -> Body:
    """Return the reader of the body announced by fields that `refuse_coding` accepted."""
    sink = sink_of(fields, plain)
    return ChunkedBody(sink) if fields.is_chunked else LengthBody(fields.content_length or 0, sink)


def _not_gzip(why: str) -> Refusal:
    return Refusal(INVALID_REQUEST, f"content-encoding: the body must be valid gzip: {why}")


def _trailers_too_large() -> Refusal:
    message = f"the trailers of the chunked body must be at most {size_text(TRAILER_BYTES_MAX)}"
    return Refusal(HEADERS_TOO_LARGE, message)
