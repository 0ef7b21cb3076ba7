"""An HTTP/1.1 connection: split the bytes into requests and answer them in order.

L1  Strict: a head is parsed by `shared/http/head.py` and has one meaning, or is refused and the connection
    closed. A small body of known length is cut out of the bytes read. A body that is large, chunked,
    compressed, or sent after `100 Continue`, is read incrementally (`shared/http/body.py`). Such a request
    is alone on its connection, unless its body is only large; after it the connection works as before.
L2  Responses are sent in the order of the requests. Consecutive appends may be in progress together, at
    most `AHEAD_MAX` of them; any other request starts when all earlier requests are answered, so that it
    sees their effects.
L3  A connection whose requests are for another shard moves there, when no request is outstanding and
    nothing is unsent (`affinity.py`). A connection that requests a stream of another shard moves with that
    request. The client does not notice.
L4  The memory that a connection can make the process hold is bounded: a head, one body up to its limit,
    the calls in progress. Data beyond that waits in the client's socket; a client that is too slow is
    disconnected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, cast

from shared.contract.errors import REQUEST_TIMEOUT, SHUTTING_DOWN, Refusal
from shared.http.body import CONTINUE, Body, PlainSink, SharedSink, Sink, body_of, refuse_coding, too_large
from shared.http.head import NO_FIELDS, Fields, keeps_alive, refuse_together, refuse_unfinished
from shared.http.http2_preface import PREFACE_START
from shared.http.pace import IDLE_SECONDS, Outflow, is_too_slow
from shared.runtime.body_memory import SharedBody
from topicsd.http.http1.affinity import Drift
from topicsd.http.http1.head_cache import KnownFields, KnownHeads, KnownLine
from topicsd.http.http1.stream import ConnectionStream
from topicsd.http.http1.timeouts import Connections, Lingering
from topicsd.service.call import HttpCall
from topicsd.service.dispatch import Dispatch
from topicsd.stream.stream import Stream

AHEAD_MAX = 16
# A body of this size or more is gathered apart from its head, so that it is never held twice.
LARGE_BODY_BYTES = 256 << 10
LOOK_AGAIN_SECONDS = 0.005
# The number of bytes to wait for while the length of the body is unknown.
_MORE_THAN_THERE_IS = 1 << 62


class Coming(NamedTuple):
    """A request whose body is read incrementally."""

    known: KnownLine
    about: KnownFields
    body: Body


class FastLane(asyncio.Protocol):
    def __init__(
        self,
        dispatch: Dispatch,
        heads: KnownHeads,
        connections: Connections,
        first: bytes = b"",
    ) -> None:
        """Create a connection. `first` is what another process read before it handed the connection over."""
        self._dispatch = dispatch
        self._heads = heads
        self._known_line, self._known_fields = heads.known_line, heads.known_fields
        self._connections = connections
        self._monotonic = dispatch.handlers.monotonic
        self._body_bytes_max = dispatch.handlers.body_bytes_max
        self._transport: asyncio.Transport
        self._first = first
        self._pieces: list[bytes] = []
        self._coming: Coming | None = None
        self._held = 0
        self._wanted = 0
        self._calls: deque[HttpCall] = deque()
        self._takes_appends = True
        """Whether the requests in progress allow an append to start beside them."""
        self._is_reading = True
        self._is_closing = False
        self._is_starting = False
        self._is_refused = False
        self._is_at_eof = False
        self._has_behind = False
        """Bytes after the request that was started last were read together with it."""
        self._heir: asyncio.Protocol | None = None
        """The protocol that has the connection now, while this object still has bytes of it."""
        self._since = self._monotonic()
        """The time since when it waits for a request, or for the rest of a request."""
        self._is_clogged = False
        self._outflow = Outflow()
        self._shard = dispatch.shard
        self._opened = self._since
        self._drift: Drift | None = None
        """Set once the connection sent a request for another process."""

    # -- callbacks of asyncio ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._connections.opened(self)
        if self._first:
            asyncio.get_running_loop().call_soon(self.data_received, b"")

    def connection_lost(self, error: Exception | None) -> None:
        """Finish the requests in progress; their responses are discarded."""
        self._is_closing = True
        self._connections.closed(self)
        self._forget()

    def pause_writing(self) -> None:
        self._is_clogged = True
        self._outflow.begin(self._transport, self._monotonic())

    def resume_writing(self) -> None:
        self._is_clogged = False
        self._go_on()

    def eof_received(self) -> bool:
        """End the connection, after the responses in progress.

        A client may half-close and still read its responses, but most that half-close are gone, so waiting
        calls are answered at once.
        """
        self._is_at_eof = True
        self._hurry()
        if not self._calls:
            self._end()
        return bool(self._calls)

    def data_received(self, data: bytes) -> None:
        if self._first:
            # The first bytes from the socket follow the bytes that were handed over.
            data, self._first = self._first + data, b""
        elif not data:
            return
        if not self._held:
            if self._drift is None or not self._drift.is_due or not self._move_over(data, self._drift):
                self._take(data, is_new=True)
        elif self._coming is not None:
            self._take_body(self._coming, data)
        else:
            self._pieces.append(data)
            self._held += len(data)
            if self._held >= self._wanted and self._is_reading:
                self._take(self._all_held(), is_new=False)

    # -- reading -------------------------------------------------------------------------------------------

    def _take(self, data: bytes, is_new: bool) -> None:
        """Start every complete request that may start; keep the rest."""
        at, size = 0, len(data)
        started = self._monotonic()
        self._wanted = 0
        self._is_starting = True
        while at < size and not self._is_closing and len(self._calls) < AHEAD_MAX and not self._is_clogged:
            taken = self._start_one(data, at, size, started)
            if not taken:
                break
            at = taken
        self._is_starting = False
        if self._is_closing:
            if self._heir is not None and at < size:
                self._heir.data_received(data[at:])
            return
        if at or is_new:
            self._since = started
        if at < size:
            self._pieces.append(data[at:] if at else data)
            self._held = size - at
        elif self._is_reading and not self._held:
            return
        waits = self._held > 0 and self._held >= self._wanted and (bool(self._calls) or self._is_clogged)
        if waits == self._is_reading:
            self._is_reading = not waits
            if waits:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _begin_body(self, known: KnownLine, about: KnownFields, data: bytes, at: int, body_at: int) -> int:
        """Start to read the body of the request at `at`. Returns what `_start_one` returns."""
        fields = about.fields
        coming = Coming(known, about, body_of(fields, self._sink_of(known)))
        taken = coming.body.feed(data, body_at)
        if isinstance(taken, Refusal):
            return self._refuse(taken)
        if coming.body.is_whole:
            return taken if self._start_with(coming, has_behind=taken < len(data)) else 0
        if fields.expect and taken == body_at:
            refusal = self._refuse_early(known, fields)
            if refusal is not None:
                return self._refuse(refusal)
            self._transport.write(CONTINUE)
        self._coming = coming
        self._held = len(data) - at
        self._wanted = _MORE_THAN_THERE_IS
        return len(data)

    def _sink_of(self, known: KnownLine) -> Sink:
        """Gather the append of another worker in memory to share with it."""
        is_elsewhere = known.is_append and known.owner != self._shard
        return SharedSink(self._body_bytes_max) if is_elsewhere else PlainSink(self._body_bytes_max)

    def _take_body(self, coming: Coming, data: bytes) -> None:
        """Take more bytes of the current body, and the requests after it."""
        self._held += len(data)
        taken = coming.body.feed(data, 0)
        if isinstance(taken, Refusal):
            self._refuse(taken)
        elif coming.body.is_whole:
            self._coming = None
            self._held = 0
            if self._start_with(coming, has_behind=taken < len(data)):
                self._take(data[taken:], is_new=True)

    def _start_with(self, coming: Coming, has_behind: bool) -> bool:
        """Start a request whose body is complete. Return False if the body is refused."""
        body = coming.body.finish()
        self._has_behind = has_behind
        if isinstance(body, Refusal):
            self._refuse(body)
            return False
        started = self._monotonic()
        if isinstance(body, bytes):
            self._start_call(coming.known, coming.about, body, started)
        else:
            self._start_call(coming.known, coming.about, b"", started, body)
        return True

    def _refuse_early(self, known: KnownLine, fields: Fields) -> Refusal | None:
        """Return why a client that sent `Expect: 100-continue` may not send its body, or None."""
        match = known.match
        if isinstance(match, Refusal):
            return match
        return self._dispatch.refuse_key(match, fields, known.line.query)

    def _all_held(self) -> bytes:
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._held = 0
        return data

    def _start_one(self, data: bytes, at: int, size: int, started: float) -> int:
        """Start the request at `at`. Return where the next one begins, or 0 if it cannot start."""
        head_end = data.find(b"\r\n\r\n", at)
        if head_end < 0:
            refusal = refuse_unfinished(data[at:])
            return 0 if refusal is None else self._refuse(refusal)
        line_end = data.find(b"\r\n", at)
        line, block = data[at:line_end], data[line_end + 2 : head_end]
        known, about = self._known_line(line), self._known_fields(block)
        if known is None or about is None:
            learned = self._learn(line, block)
            if isinstance(learned, Refusal):
                return self._refuse(learned)
            known, about = learned
        if not (about.is_plain and known.is_plain):
            fields = about.fields
            refusal = refuse_together(known.line, fields)
            if refusal is not None:
                return self._refuse(refusal)
            if about.is_coded:
                fields = about.fields
                refusal = refuse_coding(fields, self._body_bytes_max)
                if refusal is not None:
                    return self._refuse(refusal)
                if fields.is_chunked or fields.content_length:
                    return 0 if self._calls else self._begin_body(known, about, data, at, head_end + 4)
            if known.is_stream and not self._calls and self._move_to_stream(data[at:], known.owner):
                return 0
        if self._calls and not (known.is_append and self._takes_appends):
            return 0
        body_at = head_end + 4
        length = about.fields.content_length or 0
        if length > self._body_bytes_max:
            return self._refuse(too_large(self._body_bytes_max))
        end = body_at + length
        if end > size:
            if length >= LARGE_BODY_BYTES:
                return self._begin_body(known, about, data, at, body_at)
            self._wanted = end - at
            return 0
        self._has_behind = end < size
        self._start_call(known, about, data[body_at:end], started)
        return end

    def _learn(self, line: bytes, block: bytes) -> tuple[KnownLine, KnownFields] | Refusal:
        known = self._heads.line(line)
        if isinstance(known, Refusal):
            return known
        about = self._heads.fields(block)
        return about if isinstance(about, Refusal) else (known, about)

    def _start_call(
        self,
        known: KnownLine,
        about: KnownFields,
        body: bytes,
        started: float,
        shared_body: SharedBody | None = None,
    ) -> None:
        call = HttpCall("", known.line.query, about.fields, body, started, lane=self)
        if shared_body is not None:
            call.shared_body = shared_body
        if not (about.is_plain and known.is_plain):
            call.is_head = known.line.method == "HEAD"
            call.is_old = known.line.minor_version == 0
            call.closes = not keeps_alive(known.line, about.fields)
        if self._drift is not None:
            self._drift.note(known.owner)
        elif known.owner != self._shard:
            self._drift = Drift(self._shard, self._opened)
            self._drift.note(known.owner)
        drains = self._dispatch.drains
        if drains:
            call.closes = True
        # No request is started after the last request of a connection.
        self._takes_appends = known.is_append and not call.closes
        self._calls.append(call)
        self._dispatch.start(known.match, known.owner, call)
        if drains:
            self._hurry()

    def _move_to_stream(self, data: bytes, owner: int | None) -> bool:
        """Move the connection to the shard that owns the stream.

        Return whether it moved, or will be tried again soon.
        """
        if owner is None or owner == self._shard or self._is_at_eof:
            return False
        if self._transport.get_write_buffer_size():
            # Responses that were just written would be lost.
            asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._go_on)
            return True
        return self._go_over(data, owner)

    def _move_over(self, data: bytes, drift: Drift) -> bool:
        """Move the connection to the shard of its affinity, with the request that begins.

        Return whether it moved. It moves when a request arrives and not after a response: by then the
        client has read everything written.
        """
        shard = drift.target
        if self._calls or self._is_closing or self._is_clogged or self._is_at_eof or shard is None:
            return False
        if data.startswith(PREFACE_START):
            # In the other process it would be the first data of the connection, and taken for HTTP/2.
            return False
        if not drift.may_move(self._monotonic()):
            return False
        return self._go_over(data, shard)

    def _go_over(self, data: bytes, shard: int) -> bool:
        if not self._dispatch.move(self._transport, data, shard):
            return False
        self._is_closing = True
        self._connections.closed(self)
        self._forget()
        return True

    # -- answering -----------------------------------------------------------------------------------------

    def answered(self) -> None:
        """Send the responses that are ready, in the order of the requests."""
        if self._is_closing:
            return
        calls = self._calls
        while calls and (answer := calls[0].answer) is not None:
            call = calls.popleft()
            if len(answer) == 1:
                self._transport.write(answer[0])
            else:
                self._transport.writelines(answer)
            if call.closes:
                self._close()
                return
        if self._is_starting:
            return
        if not self._is_reading:
            self._go_on()
        if self._is_at_eof and not self._is_closing:
            if calls:
                self._hurry()
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

    def give_to(self, protocol: asyncio.Protocol) -> None:
        """Hand the connection of the first call over to another protocol, with the bytes read."""
        if self._is_closing:
            protocol.connection_lost(None)
            return
        self._is_closing = True
        self._connections.closed(self)
        behind = self._all_held()
        self._forget()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if behind:
            protocol.data_received(behind)
        if self._is_starting:
            self._heir = protocol

    def _go_on(self) -> None:
        """Resume with the bytes that were held while responses were due."""
        if self._held and self._coming is None and not self._is_closing and not self._is_clogged:
            self._take(self._all_held(), is_new=True)

    def _refuse(self, refusal: Refusal) -> int:
        """Send a refusal in turn, then close: the framing is in doubt, or the body is too large."""
        if self._calls:
            # The same bytes are refused again once the earlier requests are answered.
            return 0
        call = HttpCall("", "", NO_FIELDS, b"", self._since, lane=self)
        call.closes = self._is_refused = True
        self._calls.append(call)
        call.refuse(refusal)
        return 0

    def _close(self) -> None:
        has_more = self._is_refused or self._held > 0 or self._has_behind
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
        self._hurry()
        self._calls.clear()
        self._pieces.clear()
        self._coming = None
        self._held = 0

    # -- calls of the worker -------------------------------------------------------------------------------

    def check_patience(self, now: float) -> None:
        """Close the connection if its client is too slow. Called once a second."""
        if self._is_closing or self._is_clogged:
            if self._outflow.is_stuck(self._transport, now):
                self._transport.abort()
        elif self._calls:
            self._since = now
        elif self._held:
            if is_too_slow(now - self._since, self._held, self._wanted > 0):
                self._refuse(Refusal(REQUEST_TIMEOUT, "the request was not complete in time"))
        elif now - self._since > IDLE_SECONDS:
            self._close()

    def drain(self) -> None:
        """Close an idle connection now, another one after its last response."""
        # Bytes that the acceptor handed over were sent before the shutdown.
        self.data_received(b"")
        if self._is_closing:
            return
        if self._calls:
            self._calls[-1].closes = True
            self._takes_appends = False
            self._hurry()
        elif self._held:
            # The rest may take long to arrive; refuse now, so that the client gets a response.
            self._refuse(Refusal(SHUTTING_DOWN, "the server is shutting down", retry_after_ms=1000))
        else:
            self._close()

    def _hurry(self) -> None:
        """Cancel the waits of long polls; work in progress is finished."""
        for call in list(self._calls):
            if call.hurry is not None:
                call.hurry()
