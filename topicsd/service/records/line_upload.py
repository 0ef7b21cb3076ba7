"""An upload of lines: appended in batches while it arrives, however long it is.

U1  One batch is appended at a time, whole or not at all, in the order of the lines. So what is written is
    always a prefix of the lines, and a failure says where it ends.
U2  While a batch is on its way the lines after it are gathered, up to `GATHERED_BYTES_MAX`; then the client
    has to wait. A compressed body is only inflated as far as there is room.
U3  A batch ends after `BATCH_LINES_MAX` lines, or with the line that makes it `BATCH_BYTES` long. Without an
    idempotency key it also ends with what has arrived when nothing is on its way. With a key its end depends
    on the lines alone, so that a repetition makes the same batches: the key of each is that of the request
    and the number of its first line.
    A batch that is throttled is sent again for a while. Blank lines alone are no batch; the loop serves
    others after as many of them, since a small compressed body may have millions.
U4  Every batch is a call of its own, as if it were a request: for the owner of the topic at that time, with
    the key of the request checked again.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from shared.contract.endpoints import Match
from shared.contract.errors import (
    INVALID_REQUEST,
    RECORD_TOO_LARGE,
    THROTTLED,
    Refusal,
    invalid,
)
from shared.http.answer import refusal_in
from shared.http.head import Fields
from shared.text.message import size_text
from topicsd.engine.write.keyed_write import KEY_CHARACTERS_MAX
from topicsd.service.call import Call
from topicsd.service.dispatch import Dispatch
from topicsd.service.input.body_limits import RECORD_REST_BYTES
from topicsd.service.render import encode

BATCH_LINES_MAX: Final = 5000
BATCH_BYTES: Final = 1 << 20
GATHERED_BYTES_MAX: Final = 2 * BATCH_BYTES
INFLATED_AT_ONCE: Final = 256 << 10
KEY_SUFFIX_CHARACTERS: Final = 20
"""Room for a colon and the number of a line."""
THROTTLED_SECONDS_MAX: Final = 30.0
_GZIP_WINDOW: Final = 31
_BAD_STATUS: Final = 400
_CREATED: Final = 201
_INDEX: Final = re.compile(r"records\[(\d+)\](?:\.(?=\w)|)")


class _BatchAnswer(msgspec.Struct):
    """What a batch of an upload says of its append."""

    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    durability: str


_decode_answer: Final = msgspec.json.Decoder(_BatchAnswer).decode


class _BatchCall(Call, kw_only=True, eq=False):
    on_response: Callable[[int, bytes], None]

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        if self.on_answer is not None:
            on_answer, self.on_answer = self.on_answer, None
            on_answer()
        self.on_response(status, b"".join(parts))


class LineUpload:
    def __init__(
        self, dispatch: Dispatch, match: Match, fields: Fields, query: str, on_change: Callable[[], None]
    ) -> None:
        """Begin an upload; `query` is that of each batch."""
        self._dispatch = dispatch
        self._match = match
        self._fields = fields
        self._query = query
        self._on_change = on_change
        settings = dispatch.handlers.settings
        self._batch_lines = min(BATCH_LINES_MAX, settings.max_batch_records)
        # Data in base64, escapes, and a tag and meta beside it.
        self._line_bytes_max = 2 * settings.max_record_bytes + 64 * RECORD_REST_BYTES
        self._loop = dispatch.handlers.loop
        self._started = self._monotonic()
        self._inflate = zlib.decompressobj(_GZIP_WINDOW) if fields.content_encoding == "gzip" else None
        self._input: deque[bytes] = deque()
        """What has arrived and is not gathered yet."""
        self._parts: list[bytes] = []
        """The lines after the batch on its way."""
        self._size = self._newlines = 0
        """The bytes and the line ends in `_parts`."""
        self._is_flush_due = self._is_end_unknown = False
        """`_is_end_unknown`: whether `_parts` were searched for the end of a long batch, and have none."""
        self._batch = b""
        """The batch on its way; empty without one."""
        self._throttled_since = -1.0
        self._is_whole = self._is_cancelled = self._is_sending = self._is_skipping = False
        self._failure: Refusal | None = None
        self.refusal: Refusal | None = None
        """Why the upload failed, once no batch is on its way."""
        self._call: Call | None = None
        self._lines = self._count = self._deduped = self._batches = 0
        self._first_seq = self._last_seq = self._head_seq = 0
        self._has_created = False
        self._durability = ""
        key = fields.idempotency_key
        room = KEY_CHARACTERS_MAX - KEY_SUFFIX_CHARACTERS
        if len(key) > room:
            self._fail(invalid("idempotency_key", f"must be at most {room} characters for lines", room))

    def _monotonic(self) -> float:
        return self._dispatch.handlers.monotonic()

    # -- calls of the connection ---------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Return whether the client has to wait (U2)."""
        return bool(self._input) and self.refusal is None

    @property
    def is_idle(self) -> bool:
        """Return whether the upload waits for the client alone."""
        return not self._batch and not self._is_skipping and not self._is_whole

    @property
    def is_stopping(self) -> bool:
        """Return whether the upload has failed while a batch is on its way."""
        return self._failure is not None and self.refusal is None

    def write(self, data: bytes) -> Refusal | None:
        if self._failure is None and data:
            self._input.append(data)
            self._pump()
            if not self._batch and self._newlines and not self._is_flush_due:
                self._is_flush_due = True
                self._loop.call_soon(self._flush)
        return self.refusal

    def finish(self) -> bytes | Refusal:
        """Take the end of the body; `answer` sends what came of it."""
        self._is_whole = True
        self._pump()
        return b""

    def answer(self, call: Call) -> None:
        """Answer the call when all is written, or has failed."""
        self._call = call
        self._end_if_done()

    def stop(self, refusal: Refusal) -> None:
        """End with a refusal, after the batch on its way."""
        self._fail(refusal)

    def cancel(self) -> None:
        """Forget what is not on its way: the client is gone."""
        self._is_cancelled = True
        self._input.clear()
        self._parts.clear()

    def _flush(self) -> None:
        """Send what has arrived, unless the end of the body has arrived too."""
        self._is_flush_due = False
        if not self._is_cancelled:
            self._send_next(may_be_short=True)

    # -- gathering -----------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send a batch of what is gathered, then gather what there is room for, and send batches."""
        self._send_next()
        while self._failure is None and self._input and not self._is_skipping and self._may_gather:
            self._gather(self._take_input())
            self._send_next()
            self._refuse_long_line()
        if self._is_whole and not self._input and not self._is_skipping and self._failure is None:
            if self._inflate is not None and not self._inflate.eof:
                self._fail(_not_gzip("it is truncated"))
            else:
                self._send_next()
        self._end_if_done()

    @property
    def _may_gather(self) -> bool:
        return not self._batch or self._size < GATHERED_BYTES_MAX

    def _take_input(self) -> bytes:
        data = self._input.popleft()
        inflate = self._inflate
        if inflate is None:
            return data
        if inflate.eof:
            self._fail(_not_gzip("data follows its end"))
            return b""
        try:
            data = inflate.decompress(data, INFLATED_AT_ONCE)
        except zlib.error:
            self._fail(_not_gzip("it is damaged"))
            return b""
        rest = inflate.unconsumed_tail or inflate.unused_data
        if rest:
            self._input.appendleft(rest)
        return data

    def _gather(self, data: bytes) -> None:
        if not data or self._failure is not None:
            return
        newlines = data.count(b"\n")
        self._parts.append(data)
        self._size += len(data)
        self._newlines += newlines
        if newlines:
            self._is_end_unknown = False

    def _refuse_long_line(self) -> None:
        if self._batch or self._size <= BATCH_BYTES + self._line_bytes_max:
            return
        line = self._lines + self._newlines + 1
        message = f"line {line}: must be at most {size_text(self._line_bytes_max)}"
        self._fail(Refusal(RECORD_TOO_LARGE, message, {"line": line, "max": self._line_bytes_max}))

    def _send_next(self, *, may_be_short: bool = False) -> None:
        """Send the next batch, when there is one and none is on its way."""
        while not self._batch and not self._is_skipping and self._failure is None and not self._is_cancelled:
            batch = self._cut(may_be_short)
            if not batch:
                return
            if batch.isspace():
                self._lines += _line_count(batch)
                self._is_skipping = True
                self._loop.call_soon(self._on_skipped)
                return
            self._batch = batch
            self._send()

    def _on_skipped(self) -> None:
        self._is_skipping = False
        self._continue()

    def _cut(self, may_be_short: bool) -> bytes:
        """Cut the next batch off what is gathered (U3); return no bytes while its end is not known."""
        is_inflated = self._inflate is None or self._inflate.eof
        is_end = self._is_whole and not self._input and is_inflated
        is_long = self._newlines >= self._batch_lines or (self._newlines and self._size >= BATCH_BYTES)
        may_be_short = is_end or (may_be_short and self._newlines > 0 and not self._fields.idempotency_key)
        if not self._size or not (is_long or may_be_short):
            return b""
        if not may_be_short and self._is_end_unknown:
            return b""
        data = b"".join(self._parts)
        end = data.find(b"\n", BATCH_BYTES - 1) + 1
        if not end and not may_be_short and self._newlines < self._batch_lines:
            self._parts, self._is_end_unknown = [data], True
            return b""
        if not end:
            end = len(data) if is_end else data.rfind(b"\n") + 1
        if self._newlines >= self._batch_lines:
            lines = data[:end].split(b"\n", self._batch_lines)
            end -= len(lines[-1]) if len(lines) > self._batch_lines else 0
        rest = data[end:]
        self._parts = [rest] if rest else []
        self._size = len(rest)
        self._newlines = rest.count(b"\n")
        return data[:end]

    # -- batches -------------------------------------------------------------------------------------------

    def _send(self) -> None:
        dispatch, fields = self._dispatch, self._fields
        key = dispatch.check_key(self._match, fields, self._query) if dispatch.keys.are_required else None
        if isinstance(key, Refusal):
            self._on_refused(key)
            return
        if fields.idempotency_key:
            batch_key = f"{fields.idempotency_key}:{self._lines + 1}"
            fields = msgspec.structs.replace(fields, idempotency_key=batch_key)
        call = _BatchCall(
            self._match.name,
            self._query,
            fields,
            self._batch,
            self._monotonic(),
            on_response=self._on_response,
        )
        self._is_sending = True
        dispatch.start_with_key(key, "append_record", call)
        self._is_sending = False

    def _on_response(self, status: int, body: bytes) -> None:
        if status >= _BAD_STATUS:
            self._on_refused(refusal_in(body))
            return
        answer = _decode_answer(body)
        batch, self._batch = self._batch, b""
        self._throttled_since = -1.0
        lines = _line_count(batch)
        counts = self._dispatch.handlers.counts
        counts.uploads += not self._batches
        counts.upload_lines += lines
        counts.upload_records += 0 if answer.deduped else answer.count
        self._lines += lines
        self._batches += 1
        self._count += answer.count
        self._deduped += answer.count if answer.deduped else 0
        self._first_seq = self._first_seq or answer.first_seq
        self._last_seq, self._head_seq = answer.last_seq, answer.head_seq
        self._has_created = self._has_created or status == _CREATED
        self._durability = answer.durability
        if self._is_sending:
            self._loop.call_soon(self._continue)
        else:
            self._continue()

    def _continue(self) -> None:
        if self._is_cancelled:
            return
        self._pump()
        self._send_next(may_be_short=True)
        self._on_change()

    def _on_refused(self, refusal: Refusal) -> None:
        if refusal.code == THROTTLED and "limit" not in (refusal.detail or {}) and self._may_wait():
            wait_ms = refusal.retry_after_ms or 0
            self._loop.call_later(wait_ms / 1000, self._retry)
            return
        batch, self._batch = self._batch, b""
        self._fail(_with_line(refusal, batch, self._lines))

    def _may_wait(self) -> bool:
        """Return whether a batch that is throttled is sent again."""
        now = self._monotonic()
        if self._throttled_since < 0:
            self._throttled_since = now
        return now - self._throttled_since < THROTTLED_SECONDS_MAX and self._failure is None

    def _retry(self) -> None:
        if self._is_cancelled or self._failure is not None:
            self._batch = b""
            self._end_if_done()
        else:
            self._send()

    # -- the end -------------------------------------------------------------------------------------------

    def _fail(self, refusal: Refusal) -> None:
        if self._failure is None:
            self._failure = refusal
            self._input.clear()
            self._parts.clear()
            self._size = self._newlines = 0
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._batch or self._is_skipping or self._is_cancelled:
            return
        if self._failure is not None and self.refusal is None:
            self.refusal = self._with_progress(self._failure)
            self._loop.call_soon(self._on_change)
        call = self._call
        is_done = self._is_whole and not self._input and not self._size
        if call is None or not (is_done or self.refusal is not None):
            return
        self._call = None
        if self.refusal is not None:
            call.refuse(self.refusal)
        else:
            call.send(encode(self._body()), _CREATED if self._has_created else 200)

    def _progress(self) -> dict[str, int]:
        return {
            "lines": self._lines,
            "count": self._count,
            "first_seq": self._first_seq,
            "last_seq": self._last_seq,
        }

    def _with_progress(self, refusal: Refusal) -> Refusal:
        detail = {**(refusal.detail or {}), "written": self._progress()}
        if self._count:
            message = f"{refusal.message}; the first {self._lines} lines are written"
        else:
            message = f"{refusal.message}; no line is written"
        return Refusal(refusal.code, message, detail, refusal.retry_after_ms)

    def _body(self) -> dict[str, object]:
        return {
            "topic": self._match.name,
            **self._progress(),
            "head_seq": self._head_seq,
            "batches": self._batches,
            "created": self._has_created,
            "deduped_count": self._deduped,
            "durability": self._durability,
            "performance": {"server_total_ms": int((self._monotonic() - self._started) * 1e6) / 1000},
        }


def _line_count(batch: bytes) -> int:
    return batch.count(b"\n") + (not batch.endswith(b"\n"))


def _with_line(refusal: Refusal, batch: bytes, lines_before: int) -> Refusal:
    """Name the line instead of the record of a batch."""
    match = _INDEX.match(refusal.message)
    if match is None:
        return refusal
    numbers = [number for number, line in enumerate(batch.split(b"\n"), 1) if line and not line.isspace()]
    line = lines_before + numbers[int(match[1])]
    detail = {**(refusal.detail or {}), "line": line}
    detail.pop("index", None)
    field = str(detail.pop("field", ""))
    if name := _INDEX.sub("", field, count=1):
        detail["field"] = name
    rest = refusal.message[match.end() :].removeprefix(": ")
    return Refusal(refusal.code, f"line {line}: {rest}", detail, refusal.retry_after_ms)


def _not_gzip(why: str) -> Refusal:
    return Refusal(INVALID_REQUEST, f"content-encoding: the body must be valid gzip: {why}")
