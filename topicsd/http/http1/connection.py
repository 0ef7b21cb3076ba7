"""An HTTP/1.1 connection: split the bytes into requests and answer them in order.

L1  Strict: a head is parsed by `shared/http/head.py` and has one meaning, or is refused and the connection
    closed. A small body of known length is cut out of the bytes read. A body that is large, chunked,
    compressed, of lines, or sent after `100 Continue`, is read incrementally (`shared/http/body.py`). Such a
    request is alone on its connection, unless its body is only large; after it the connection works as
    before. Lines are appended as they arrive.
L2  Responses are sent in the order of the requests. Consecutive appends may be in progress together, at
    most `AHEAD_MAX` of them; any other request starts when all earlier requests are answered, so that it
    sees their effects.
L3  A connection that is misplaced closes after a response (`Connection: close`), so that the client connects
    again and is placed at the worker of its next request. It is misplaced when its last
    `FOREIGN_REQUESTS_MIN` requests were for one other shard, and it is not new. Each of them arrived
    alone, after the response to the one before: a client that pipelines keeps its connection.
L4  The memory that a connection can make the process hold is bounded: a head, one body up to its limit,
    the calls in progress. Data beyond that waits in the client's socket; a client that is too slow is
    disconnected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from shared.contract.errors import REQUEST_TIMEOUT, Refusal, shutting_down
from shared.http.body import CONTINUE, refuse_coding, too_large
from shared.http.client_speed import IDLE_SECONDS, Outflow, is_too_slow
from shared.http.head import NO_FIELDS, Fields, keeps_alive, refuse_together, refuse_unfinished
from shared.ipc.board import PLACEMENT_VERSION
from shared.runtime.body_memory import SharedBody
from topicsd.http.http1.head_cache import HeadCache, KnownFields, KnownLine
from topicsd.http.http1.partial_request import PartialRequest, partial_request, refuse_early
from topicsd.http.http1.stream import ConnectionStream
from topicsd.http.http1.timeouts import ClientConnection, Connections, Lingering
from topicsd.service.call import BrowserCall, HttpCall
from topicsd.service.dispatch import Dispatch
from topicsd.service.records.line_upload import LineUpload
from topicsd.stream.stream import Stream

AHEAD_MAX = 16
# A body of this size or more is gathered apart from its head, so that it is never held twice.
LARGE_BODY_BYTES = 256 << 10
# A new connection costs much more than a remote request: close one only for clear evidence, and rarely.
FOREIGN_REQUESTS_MIN = 64
PLACEMENT_SECONDS_MIN = 1.0
# The number of bytes to wait for while the length of the body is unknown.
_UNKNOWN_BYTES = 1 << 62


class Http1Connection(ClientConnection, asyncio.Protocol):
    def __init__(
        self,
        dispatch: Dispatch,
        heads: HeadCache,
        connections: Connections,
        first: bytes = b"",
    ) -> None:
        """Create a connection. `first` is what another process read before it handed the connection over."""
        self._dispatch = dispatch
        self._heads = heads
        self._cached_line, self._cached_fields = heads.known_line, heads.known_fields
        self._connections = connections
        self._placement = dispatch.placement
        self._monotonic = dispatch.handlers.monotonic
        self._body_bytes_max = dispatch.handlers.body_bytes_max
        self._transport: asyncio.Transport
        self._initial = first
        self._parts: list[bytes] = []
        self._partial: PartialRequest | None = None
        self._pending = 0
        self._needed = 0
        self._calls: deque[HttpCall] = deque()
        self._may_append = True
        """Whether the requests in progress allow an append to start beside them."""
        self._is_reading = True
        self._is_closing = False
        self._is_starting = False
        self._must_linger = False
        """Whether the client may still be sending when the connection closes."""
        self._is_at_eof = False
        self._has_more_data = False
        """Whether bytes after the last started request were read together with it."""
        self._successor: asyncio.Protocol | None = None
        """The protocol that has the connection now, while this object still has bytes of it."""
        self._waiting_since = self._monotonic()
        """When the wait for a request, or for the rest of a request, began."""
        self._is_paused = False
        self._outflow = Outflow()
        self._shard = dispatch.shard
        self._is_broker = dispatch.broker is not None
        self._opened_at = self._waiting_since
        self._foreign_owner: int | None = None
        self._foreign_count = 0
        """The number of the last requests that were for `_foreign_owner`."""

    # -- callbacks of asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._connections.opened(self)
        if self._initial:
            asyncio.get_running_loop().call_soon(self.data_received, b"")

    def connection_lost(self, error: Exception | None) -> None:
        """Let the requests in progress finish; their responses are discarded."""
        self._is_closing = True
        self._connections.closed(self)
        self._forget()

    def pause_writing(self) -> None:
        self._is_paused = True
        self._outflow.begin(self._transport, self._monotonic())

    def resume_writing(self) -> None:
        self._is_paused = False
        self._resume()

    def eof_received(self) -> bool:
        """End the connection, after the responses in progress.

        A client may half-close and still read its responses, but most that half-close are gone, so waiting
        calls are answered at once.
        """
        self._is_at_eof = True
        self._cancel_waits()
        is_answering = bool(self._calls) or (self._partial is not None and self._partial.is_stopping)
        if not is_answering:
            self._end()
        return is_answering

    def data_received(self, data: bytes) -> None:
        if self._initial:
            # The first bytes from the socket follow the bytes that were handed over.
            data, self._initial = self._initial + data, b""
        elif not data:
            return
        if not self._pending:
            self._take(data, is_new=True)
        elif self._partial is not None:
            self._take_body(self._partial, data)
        else:
            self._parts.append(data)
            self._pending += len(data)
            if self._pending >= self._needed and self._is_reading:
                self._take(self._take_pending(), is_new=False)

    # -- reading -------------------------------------------------------------------------------------------

    def _take(self, data: bytes, is_new: bool) -> None:
        """Start every complete request that may start; keep the rest."""
        at, size = 0, len(data)
        started = self._monotonic()
        self._needed = 0
        placement = self._placement
        # Inlined `refresh`: hot path.
        if placement.words[PLACEMENT_VERSION] != placement.version:
            placement.reload()
        self._is_starting = True
        while at < size and not self._is_closing and len(self._calls) < AHEAD_MAX and not self._is_paused:
            next_at = self._start_one(data, at, size, started)
            if not next_at:
                break
            at = next_at
        self._is_starting = False
        if self._is_closing:
            if self._successor is not None and at < size:
                self._successor.data_received(data[at:])
            return
        if at or is_new:
            self._waiting_since = started
        if at < size:
            self._parts.append(data[at:] if at else data)
            self._pending = size - at
        elif self._is_reading and not self._pending:
            return
        must_wait = (
            self._pending > 0 and self._pending >= self._needed and (bool(self._calls) or self._is_paused)
        )
        if must_wait == self._is_reading:
            self._is_reading = not must_wait
            if must_wait:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _begin_body(
        self, known: KnownLine, known_fields: KnownFields, data: bytes, at: int, body_at: int
    ) -> int:
        """Start to read the body of the request at `at`. Returns what `_start_one` returns."""
        fields = known_fields.fields
        partial = partial_request(self._dispatch, known, known_fields, self._on_upload)
        if isinstance(partial, Refusal):
            return self._refuse(partial, fields)
        next_at = partial.feed(data, body_at)
        if isinstance(next_at, Refusal):
            return self._refuse(next_at, fields)
        if partial.body.is_whole:
            return next_at if self._start_partial(partial, has_more_data=next_at < len(data)) else 0
        if fields.expect and next_at == body_at:
            refusal = refuse_early(self._dispatch, partial)
            if refusal is not None:
                return self._refuse(refusal, fields)
            self._transport.write(CONTINUE)
        self._partial = partial
        self._pending = len(data) - at
        self._needed = _UNKNOWN_BYTES
        if partial.upload is not None:
            self._on_upload()
        return len(data)

    def _take_body(self, partial: PartialRequest, data: bytes) -> None:
        """Take more bytes of the current body, and the requests after it."""
        self._pending += len(data)
        next_at = partial.feed(data, 0)
        if isinstance(next_at, Refusal):
            self._refuse(next_at, partial.known_fields.fields)
        elif partial.body.is_whole:
            self._partial, self._pending = None, 0
            if self._start_partial(partial, has_more_data=next_at < len(data)):
                self._take(data[next_at:], is_new=True)
        elif partial.upload is not None:
            self._on_upload()

    def _on_upload(self) -> None:
        """Pause or resume the upload in progress, or refuse it."""
        partial = self._partial
        if partial is None or partial.upload is None:
            return
        self._waiting_since = self._monotonic()
        upload = partial.upload
        if upload.refusal is not None:
            self._refuse(upload.refusal, partial.known_fields.fields)
        elif upload.is_full == self._is_reading:
            self._is_reading = not self._is_reading
            if self._is_reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _start_partial(self, partial: PartialRequest, has_more_data: bool) -> bool:
        """Start a request whose body is complete. Return False if the body is refused."""
        body = partial.body.finish()
        self._has_more_data = has_more_data
        if isinstance(body, Refusal):
            self._refuse(body, partial.known_fields.fields)
            return False
        started = self._monotonic()
        known = self._heads.placed(partial.known_line)
        if isinstance(body, bytes):
            self._start_call(known, partial.known_fields, body, started, upload=partial.upload)
        elif known.owner == self._shard:
            # A record, or its topic was moved to this shard while the body arrived.
            self._start_call(known, partial.known_fields, body.mapped(), started, body)
        else:
            self._start_call(known, partial.known_fields, b"", started, body)
        return True

    def _take_pending(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        self._pending = 0
        return data

    def _start_one(self, data: bytes, at: int, size: int, started: float) -> int:
        """Start the request at `at`. Return the offset of the next one, or 0 if it cannot start."""
        head_end = data.find(b"\r\n\r\n", at)
        if head_end < 0:
            refusal = refuse_unfinished(data[at:])
            return 0 if refusal is None else self._refuse(refusal)
        line_end = data.find(b"\r\n", at)
        line, block = data[at:line_end], data[line_end + 2 : head_end]
        known, known_fields = self._cached_line(line), self._cached_fields(block)
        if known is None or known_fields is None:
            parsed = self._parse_head(line, block)
            if isinstance(parsed, Refusal):
                return self._refuse(parsed)
            known, known_fields = parsed
        if not (known_fields.is_common_block and known.is_common_line):
            fields = known_fields.fields
            refusal = refuse_together(known.line, fields)
            if refusal is not None:
                return self._refuse(refusal, fields)
            if known_fields.is_coded:
                refusal = refuse_coding(fields, self._heads.body_bytes_max(known, known_fields))
                if refusal is not None:
                    return self._refuse(refusal, fields)
                has_lines = known.is_record and known_fields.is_lines
                if fields.is_chunked or fields.content_length or fields.content_digest or has_lines:
                    return 0 if self._calls else self._begin_body(known, known_fields, data, at, head_end + 4)
        if self._calls and not (known.is_append and self._may_append):
            return 0
        body_at = head_end + 4
        length = known_fields.fields.content_length or 0
        if length > self._body_bytes_max:
            return self._refuse(too_large(self._heads.body_bytes_max(known)), known_fields.fields)
        end = body_at + length
        if end > size:
            if length >= LARGE_BODY_BYTES:
                return self._begin_body(known, known_fields, data, at, body_at)
            self._needed = end - at
            return 0
        self._has_more_data = end < size
        self._start_call(known, known_fields, data[body_at:end], started)
        return end

    def _parse_head(self, line: bytes, block: bytes) -> tuple[KnownLine, KnownFields] | Refusal:
        known = self._heads.line(line)
        if isinstance(known, Refusal):
            return known
        known_fields = self._heads.fields(block)
        return known_fields if isinstance(known_fields, Refusal) else (known, known_fields)

    def _start_call(
        self,
        known: KnownLine,
        known_fields: KnownFields,
        body: bytes,
        started: float,
        shared_body: SharedBody | None = None,
        upload: LineUpload | None = None,
    ) -> None:
        fields = known_fields.fields
        call = known_fields.call_type("", known.line.query, fields, body, started, connection=self)
        if shared_body is not None:
            call.shared_body = shared_body
        if not (known_fields.is_common_block and known.is_common_line):
            call.is_options = known.line.method == "OPTIONS"
            call.is_head = known.line.method == "HEAD"
            call.is_old = known.line.minor_version == 0
            call.is_last = not keeps_alive(known.line, fields)
        is_draining = self._dispatch.is_draining
        if is_draining:
            call.is_last = True
        owner = known.owner
        if self._is_broker and owner == self._shard:
            owner = self._dispatch.local_owner(known.match)
        if owner == self._shard:
            self._foreign_count = 0
        elif self._is_misplaced(owner, started) and not call.is_last:
            call.is_last = self._must_linger = True
            self._dispatch.count_misplaced()
        # No request is started after the last request of a connection.
        self._may_append = known.is_append and not call.is_last and upload is None
        self._calls.append(call)
        if upload is None:
            self._dispatch.start(known.match, known.owner, call)
        else:
            upload.answer(call)
        if is_draining:
            self._cancel_waits()

    def _is_misplaced(self, owner: int | None, started: float) -> bool:
        """Count a request for another process. Return whether the connection is to be placed anew (L3)."""
        if owner != self._foreign_owner or self._calls or self._has_more_data:
            self._foreign_owner = owner
            self._foreign_count = 0
        self._foreign_count += 1
        return (
            self._foreign_count >= FOREIGN_REQUESTS_MIN
            and owner is not None
            and started - self._opened_at >= PLACEMENT_SECONDS_MIN
        )

    # -- answering -----------------------------------------------------------------------------------------

    def flush_responses(self) -> None:
        """Send the responses that are ready, in the order of the requests."""
        if self._is_closing:
            return
        calls = self._calls
        while calls and (response := calls[0].response) is not None:
            call = calls.popleft()
            if len(response) == 1:
                self._transport.write(response[0])
            else:
                self._transport.writelines(response)
            if call.is_last:
                self._close()
                return
        if self._is_starting:
            return
        if not self._is_reading:
            self._resume()
        if self._is_at_eof and not self._is_closing:
            if calls:
                self._cancel_waits()
            else:
                self._close()

    def open_stream(self, head: bytes) -> Stream:
        """Send the head of a stream for the first call.

        No request starts beside a call that may be a stream (L2).
        """
        self._is_closing = True
        self._connections.closed(self)
        self._forget()
        return ConnectionStream(self._transport, self._connections, self._monotonic, head)

    def switch_protocol(self, protocol: asyncio.Protocol) -> None:
        """Hand the connection of the first call over to another protocol, with the bytes read."""
        if self._is_closing:
            protocol.connection_lost(None)
            return
        self._is_closing = True
        self._connections.closed(self)
        rest = self._take_pending()
        self._forget()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if rest:
            protocol.data_received(rest)
        if self._is_starting:
            self._successor = protocol

    def _resume(self) -> None:
        """Resume with the bytes that were kept while responses were due."""
        if self._pending and self._partial is None and not self._is_closing and not self._is_paused:
            self._take(self._take_pending(), is_new=True)

    def _refuse(self, refusal: Refusal, fields: Fields = NO_FIELDS) -> int:
        """Send a refusal in turn, then close: the framing is in doubt, or the body is too large."""
        if self._calls:
            # The same bytes are refused again once the earlier requests are answered.
            return 0
        call = (BrowserCall if fields.cors else HttpCall)(
            "", "", fields, b"", self._waiting_since, connection=self
        )
        call.is_last = self._must_linger = True
        self._calls.append(call)
        call.refuse(refusal)
        return 0

    def _close(self) -> None:
        has_more = self._must_linger or self._pending > 0 or self._has_more_data
        self._end()
        if has_more and not self._is_at_eof:
            Lingering(self._transport, self._connections, self._monotonic)
            self._connections.closed(self)
        else:
            self._transport.close()

    def _end(self) -> None:
        """Start no more requests; what was written may still have to be read."""
        self._is_closing = True
        self._outflow.begin(self._transport, self._monotonic())
        self._forget()

    def _forget(self) -> None:
        self._cancel_waits()
        self._calls.clear()
        self._parts.clear()
        if self._partial is not None and self._partial.upload is not None:
            self._partial.upload.cancel()
        self._partial = None
        self._pending = 0

    # -- calls of the worker -------------------------------------------------------------------------------

    def check_timeouts(self, now: float) -> None:
        """Close the connection if its client is too slow. Called once a second."""
        if self._is_closing or self._is_paused:
            if self._outflow.is_stuck(self._transport, now):
                self._transport.abort()
        elif self._calls:
            self._waiting_since = now
        elif self._partial is not None and self._partial.upload is not None:
            upload = self._partial.upload
            if upload.is_idle and now - self._waiting_since > IDLE_SECONDS:
                upload.stop(Refusal(REQUEST_TIMEOUT, "no line arrived in time"))
        elif self._pending:
            if is_too_slow(now - self._waiting_since, self._pending, self._needed > 0):
                self._refuse(Refusal(REQUEST_TIMEOUT, "the request was not complete in time"))
        elif now - self._waiting_since > IDLE_SECONDS:
            self._close()

    def drain(self) -> None:
        """Close an idle connection now, another one after its last response."""
        # Bytes that the acceptor handed over were sent before the shutdown.
        self.data_received(b"")
        if self._is_closing:
            return
        if self._calls:
            self._calls[-1].is_last = True
            self._may_append = False
            self._cancel_waits()
        elif self._partial is not None and self._partial.upload is not None:
            self._partial.upload.stop(shutting_down())
        elif self._pending:
            # The rest may take long to arrive; refuse now, so that the client gets a response.
            self._refuse(shutting_down())
        else:
            self._close()

    def _cancel_waits(self) -> None:
        """Cancel the waits of long polls; work in progress is finished."""
        for call in list(self._calls):
            call.cancel()
