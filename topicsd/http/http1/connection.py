"""A connection of HTTP/1.1: cut requests out of the bytes, answer them in turn.

L1  Strict: a head is read by `shared/http/head.py` and means one thing, or is refused and the connection
    closed. A small body of known length is cut out of what was read. One that is large, chunked, compressed,
    or waits for a word first is read as it comes (`shared/http/body.py`), alone on its connection unless it
    is only large; behind it the connection is what it was.
L2  Answers leave in the order of the requests. Appends in a row may be on their way together, at most
    `AHEAD_MAX` of them; any other request starts when those before it are answered, so that it sees
    what they did.
L3  A connection whose requests are for another shard moves there, when nothing is outstanding and nothing
    unsent (`drift.py`), and one that asks for a stream of another shard with that request. The client notices
    nothing.
L4  What a connection can make the process hold is bounded: a head, one body up to its limit, the calls
    ahead. A client that sends more than that waits in its socket; one that is too slow is closed.
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
# A body from here on is gathered apart from its head, so that it is never held twice.
LARGE_BODY_BYTES = 256 << 10
LOOK_AGAIN_SECONDS = 0.005
# As long as nobody can say how much is missing.
_MORE_THAN_THERE_IS = 1 << 62


class Coming(NamedTuple):
    """A request of which the body is read as it comes."""

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
        """`first` is what was read of the connection before it came here."""
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
        """Whether what is on its way lets an append start beside it."""
        self._is_reading = True
        self._is_closing = False
        self._is_starting = False
        self._is_refused = False
        self._is_at_eof = False
        self._has_behind = False
        """More came with the request that was started last."""
        self._heir: asyncio.Protocol | None = None
        """Who has the connection now, while this lane still has bytes of it."""
        self._since = self._monotonic()
        """When it began to wait for what it waits for: a request, or the rest of one."""
        self._is_clogged = False
        self._outflow = Outflow()
        self._shard = dispatch.shard
        self._opened = self._since
        self._drift: Drift | None = None
        """Of a connection that ever asked for what is elsewhere."""

    # -- asyncio's side ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._connections.opened(self)
        if self._first:
            asyncio.get_running_loop().call_soon(self.data_received, b"")

    def connection_lost(self, error: Exception | None) -> None:
        """What is on its way is still done; nobody hears of it."""
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
        """A client may close its side and still read its answers, but most that do so are gone."""
        self._is_at_eof = True
        self._hurry()
        if not self._calls:
            self._end()
        return bool(self._calls)

    def data_received(self, data: bytes) -> None:
        if self._first:
            # Whatever comes first from the socket stands behind what was read before.
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
        """Start every request that is there whole and may start; keep the rest."""
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
        """Of the request that begins at `at`, as `_start_one`."""
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
        """What came of a body that had begun, and what came behind it."""
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
        """Whether the request could be started, with the body that is there whole now."""
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
        """Why a client that waits to be told that it may send its body may not."""
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
        """Start the request that begins at `at`; where the next one does, or 0 when this one cannot start."""
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
        # Nothing is started behind the last request of a connection.
        self._takes_appends = known.is_append and not call.closes
        self._calls.append(call)
        self._dispatch.start(known.match, known.owner, call)
        if drains:
            self._hurry()

    def _move_to_stream(self, data: bytes, owner: int | None) -> bool:
        """Whether the connection went to the shard that the stream comes from, or will soon."""
        if owner is None or owner == self._shard or self._is_at_eof:
            return False
        if self._transport.get_write_buffer_size():
            # Answers that were just written would be lost.
            asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self._go_on)
            return True
        return self._go_over(data, owner)

    def _move_over(self, data: bytes, drift: Drift) -> bool:
        """Whether the connection went to the shard that it came to belong to, with the request that begins.

        It moves when a request comes and not behind an answer: then the client has read all that was written.
        """
        shard = drift.target
        if self._calls or self._is_closing or self._is_clogged or self._is_at_eof or shard is None:
            return False
        if data.startswith(PREFACE_START):
            # Where it comes to, it would be the first of the connection.
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
        """A call has its answer; those that stand first in the line leave."""
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
        """Of the call that stands first: nothing starts beside one that may be a stream (L2)."""
        self._is_closing = True
        self._connections.closed(self)
        self._forget()
        return ConnectionStream(self._transport, self._connections, self._monotonic, head)

    def give_to(self, protocol: asyncio.Protocol) -> None:
        """Of the call that stands first, as with a stream."""
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
        """Take up what was held while answers were due."""
        if self._held and self._coming is None and not self._is_closing and not self._is_clogged:
            self._take(self._all_held(), is_new=True)

    def _refuse(self, refusal: Refusal) -> int:
        """The framing is in doubt, or the body too large to be read: answer in turn, then close."""
        if self._calls:
            # It is found again when those before it are answered.
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
        """Nothing more is started; what was written may still have to be read."""
        self._is_closing = True
        self._outflow.begin(self._transport, self._monotonic())
        self._forget()

    def _forget(self) -> None:
        self._hurry()
        self._calls.clear()
        self._pieces.clear()
        self._coming = None
        self._held = 0

    # -- the process's side --------------------------------------------------------------------------------

    def check_patience(self, now: float) -> None:
        """Called now and then: close a connection whose client is too slow."""
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
        """The process ends: an idle connection is closed now, another with its last answer."""
        # What came along from the front process was sent before the end.
        self.data_received(b"")
        if self._is_closing:
            return
        if self._calls:
            self._calls[-1].closes = True
            self._takes_appends = False
            self._hurry()
        elif self._held:
            # The rest of it may be long in coming; nobody is left without an answer.
            self._refuse(Refusal(SHUTTING_DOWN, "the server is shutting down", retry_after_ms=1000))
        else:
            self._close()

    def _hurry(self) -> None:
        """Nothing is waited for any more but what is under way."""
        for call in list(self._calls):
            if call.hurry is not None:
                call.hurry()
