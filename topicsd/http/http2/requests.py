"""The requests of an HTTP/2 connection: from the library's events to the handlers, and back.

R1  A request starts when it is complete and there is room for its response, its body and itself beside the
    requests in progress, including those whose stream was reset meanwhile. Requests start in the order in
    which they completed.
R2  A body larger than a stream's first window is admitted when there is room for all of it.
R3  A response that is sent before the request is complete ends the stream: the rest is not needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from h2.errors import ErrorCodes
from h2.events import (
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)

from shared.contract.errors import HEADERS_TOO_LARGE, REQUEST_TIMEOUT, Refusal, shutting_down
from shared.http.body import BodySink, PlainSink, SharedSink, sink_of, too_large
from shared.http.client_speed import IDLE_SECONDS, is_too_slow
from topicsd.http.http1.head_cache import HeadCache
from topicsd.http.http1.timeouts import ClientConnection
from topicsd.http.http2.exchange import Exchange
from topicsd.http.http2.head import Head, Header, read_head
from topicsd.http.http2.limits import (
    HEAVY_HEAD,
    SPARE_WINDOW,
    STREAM_WINDOW,
    STREAMS_MAX,
    UNSENT_BYTES_MAX,
    BodyRoom,
)
from topicsd.http.http2.sender import Sender
from topicsd.http.http2.wire import Wire
from topicsd.service.dispatch import Dispatch
from topicsd.service.records.line_upload import GATHERED_BYTES_MAX
from topicsd.service.records.record_body import record_sink


class Requests:
    def __init__(
        self,
        dispatch: Dispatch,
        heads: HeadCache,
        wire: Wire,
        on_answer: Callable[[], None],
        client: ClientConnection,
    ) -> None:
        """Create the requests of a connection. `on_answer` is called when there is something to send."""
        self._client = client
        self._dispatch = dispatch
        self._heads = heads
        self._wire = wire
        self._on_answer = on_answer
        self._loop = dispatch.handlers.loop
        self._body_bytes_max = dispatch.handlers.body_bytes_max
        self.sender = Sender[Exchange](wire)
        self._exchanges: dict[int, Exchange] = {}
        self._complete: deque[Exchange] = deque()
        self._room = BodyRoom(self._body_bytes_max)
        self._in_progress: set[Exchange] = set()
        """Started and not answered, whether the stream still exists or not."""
        self._working_bytes = 0
        """Body bytes of the requests in progress."""
        self._unsent = 0
        """Unsent bytes of complete responses."""
        self.is_refusing = False
        self.is_cancelling_waits = False
        """Long polls do not wait any more: the client half-closed, or the process ends."""

    @property
    def address(self) -> str:
        return self._client.address

    @property
    def has_streams(self) -> bool:
        return any(exchange.is_stream for exchange in self._exchanges.values())

    @property
    def is_empty(self) -> bool:
        return not self._exchanges

    # -- events of the library -----------------------------------------------------------------------------

    def take(self, events: list[Event], now: float) -> int:
        """Process events. Return the work wasted on streams that were reset, as a number of resets."""
        wasted = 0
        for event in events:
            if isinstance(event, RequestReceived):
                wasted += self._begin_request(event, now)
            elif isinstance(event, DataReceived):
                self._take_data(event, now)
            elif isinstance(event, StreamEnded):
                exchange = self._exchanges.get(event.stream_id)
                if exchange is not None:
                    exchange.is_whole = True
                    if exchange.call is None:
                        self._complete.append(exchange)
            elif isinstance(event, WindowUpdated):
                self.sender.window_opened(event.stream_id)
            elif isinstance(event, RemoteSettingsChanged):
                self._wire.bound_header_table()
                self.sender.window_opened(0)
            elif isinstance(event, StreamReset):
                wasted += 1
                exchange = self._exchanges.get(event.stream_id)
                if exchange is not None:
                    self._discard(exchange)
        return wasted

    def _begin_request(self, event: RequestReceived, now: float) -> int:
        """Begin a request. Return 0, or the number of resets that it counts as."""
        stream_id = event.stream_id
        if self.is_refusing:
            self._wire.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            return 1
        head = read_head(event.headers, self._heads)
        is_refused = isinstance(head, Refusal)
        known = None if isinstance(head, Refusal) else head.known_line
        is_remote = known is not None and known.is_append and known.owner != self._dispatch.shard
        sink = None
        if not isinstance(head, Refusal):
            checked = self._sink_of(head, is_remote, stream_id)
            if isinstance(checked, Refusal):
                head, is_refused = checked, True
            else:
                sink = checked
        exchange = Exchange(self, stream_id, None if is_refused else head, now, is_remote, sink)  # type: ignore[arg-type]
        exchange.is_whole = event.stream_ended is not None
        self._exchanges[stream_id] = exchange
        if isinstance(head, Refusal):
            exchange.refuse(head, now)
        elif exchange.upload is not None:
            if not exchange.is_whole:
                self._wire.increment_flow_control_window(GATHERED_BYTES_MAX - STREAM_WINDOW, stream_id)
        elif not exchange.is_whole and (head.fields.content_length or 0) > STREAM_WINDOW:
            self._request_room(exchange, head.fields.content_length or 0, now)
        # Reading a head with so many fields costs far more than sending it.
        is_heavy = isinstance(head, Refusal) and head.code == HEADERS_TOO_LARGE
        return HEAVY_HEAD if is_heavy else 0

    def _sink_of(self, head: Head, is_remote: bool, stream_id: int) -> BodySink | Refusal | None:
        """Return the sink of a record, of lines, or of a body with a digest; None for other bodies."""
        known, fields = head
        if known.is_record:
            on_change = partial(self._on_upload, stream_id)
            return record_sink(self._dispatch, known.match, fields, known.line.query, on_change)
        if not fields.content_digest:
            return None
        bytes_max = self._body_bytes_max
        return sink_of(fields, SharedSink(bytes_max) if is_remote else PlainSink(bytes_max))

    def _take_data(self, event: DataReceived, now: float) -> None:
        self._wire.return_window(event.flow_controlled_length)
        exchange = self._exchanges.get(event.stream_id)
        if exchange is None:
            return
        exchange.is_whole = event.stream_ended is not None
        if exchange.call is not None:
            return
        refusal = exchange.receive(event.data)
        if refusal is not None:
            exchange.refuse(refusal, now)
            return
        if exchange.upload is not None:
            exchange.unreturned += event.flow_controlled_length
            self._return_window(exchange, now)
            return
        size = exchange.body.tell()
        if size > self._body_bytes_max:
            exchange.refuse(too_large(self._body_bytes_max), now)
            return
        if exchange.is_whole:
            return
        padding = event.flow_controlled_length - len(event.data)
        if padding:
            # The window was opened for the body alone.
            self._wire.increment_flow_control_window(padding, event.stream_id)
        if size > STREAM_WINDOW // 2 and not exchange.has_requested_room:
            # The client did not send a content-length.
            self._request_room(exchange, self._body_bytes_max, now)

    # -- uploads -------------------------------------------------------------------------------------------

    def _return_window(self, exchange: Exchange, now: float) -> None:
        """Let the client of an upload send as much as there is room for."""
        assert exchange.upload is not None
        exchange.since = now
        if not exchange.is_whole and not exchange.upload.is_full and exchange.unreturned:
            self._wire.increment_flow_control_window(exchange.unreturned, exchange.id)
            exchange.unreturned = 0

    def _on_upload(self, stream_id: int) -> None:
        """Resume an upload, or refuse it."""
        exchange = self._exchanges.get(stream_id)
        # The call of a whole request answers it.
        if exchange is None or exchange.upload is None or exchange.call is not None or exchange.is_whole:
            return
        now = self._dispatch.handlers.monotonic()
        if exchange.upload.refusal is not None:
            exchange.refuse(exchange.upload.refusal, now)
        else:
            self._return_window(exchange, now)
        self._on_answer()

    # -- room for bodies -----------------------------------------------------------------------------------

    def _request_room(self, exchange: Exchange, size: int, now: float) -> None:
        exchange.has_requested_room = exchange.is_waiting_for_room = True
        self._room.request(exchange.id, size)
        self._admit_bodies(now)

    def _admit_bodies(self, now: float) -> None:
        for stream_id, size in self._room.admit():
            exchange = self._exchanges[stream_id]
            exchange.is_waiting_for_room = False
            exchange.since = now
            missing = size + SPARE_WINDOW - STREAM_WINDOW
            if missing > 0:
                self._wire.increment_flow_control_window(missing, stream_id)

    # -- starting ------------------------------------------------------------------------------------------

    def start_some(self, now: float) -> bool:
        """Start the requests that may start. Return whether any did."""
        has_started = False
        while self._complete and self._has_room_for(self._complete[0]):
            exchange = self._complete.popleft()
            if not exchange.is_lost:
                self._start(exchange, now)
                has_started = True
        return has_started

    def _has_room_for(self, exchange: Exchange) -> bool:
        working = self._working_bytes
        return (
            self._unsent < UNSENT_BYTES_MAX
            and len(self._in_progress) < STREAMS_MAX
            and (not working or working + exchange.held_bytes <= self._body_bytes_max)
        )

    def _start(self, exchange: Exchange, now: float) -> None:
        call = exchange.make_call(now, self._body_bytes_max)
        if exchange.has_requested_room:
            self._room.release(exchange.id)
            self._admit_bodies(now)
        if isinstance(call, Refusal):
            exchange.refuse(call, now)
            return
        self._working_bytes += exchange.working_bytes
        self._in_progress.add(exchange)
        assert exchange.head is not None
        known = self._heads.placed(exchange.head.known_line)
        if call.shared_body is not None and known.owner == self._dispatch.shard:
            # A record, or its topic was moved to this shard while the body arrived.
            call.body = call.shared_body.mapped()
        if exchange.upload is None:
            self._dispatch.start(known.match, known.owner, call)
        else:
            exchange.upload.answer(call)
        if self.is_cancelling_waits or self._dispatch.is_draining:
            exchange.cancel_wait()

    # -- calls of an exchange ------------------------------------------------------------------------------

    def send_head(self, exchange: Exchange, headers: list[Header], ends: bool) -> None:
        self._wire.send_headers(exchange.id, headers, end_stream=ends)

    def on_response(self, exchange: Exchange, is_bodyless: bool) -> None:
        self._in_progress.discard(exchange)
        self._working_bytes -= exchange.working_bytes
        exchange.working_bytes = 0
        if exchange.is_lost:
            if exchange.is_stream:
                # In a later turn, when the opener of the stream has set its callbacks.
                self._loop.call_soon(exchange.discard)
        elif is_bodyless:
            self._finish(exchange)
        else:
            if not exchange.is_stream:
                self._unsent += exchange.unsent
            self.sender.wake(exchange)
        self._on_answer()

    def has_more(self, exchange: Exchange) -> None:
        self.sender.wake(exchange)
        self._on_answer()

    def on_sent(self, exchange: Exchange, size: int) -> None:
        """Account for `size` bytes of an exchange that were put into a frame."""
        if not exchange.is_stream:
            self._unsent -= size
        if exchange.is_ending and not exchange.unsent:
            self._finish(exchange)
        elif exchange.is_stream:
            exchange.on_data_sent()

    # -- ends ----------------------------------------------------------------------------------------------

    def _finish(self, exchange: Exchange) -> None:
        if not exchange.is_whole:
            self._wire.reset_stream(exchange.id, ErrorCodes.NO_ERROR)
        self._drop(exchange)

    def _drop(self, exchange: Exchange) -> None:
        del self._exchanges[exchange.id]
        if not exchange.is_stream:
            self._unsent -= exchange.unsent
        self.sender.forget(exchange)
        if exchange.has_requested_room:
            self._room.release(exchange.id)
            self._admit_bodies(exchange.since)

    def _discard(self, exchange: Exchange) -> None:
        self._drop(exchange)
        exchange.discard()

    def discard_all(self) -> None:
        """Discard all exchanges at the end of the connection, without admitting more bodies."""
        self._room = BodyRoom(0)
        for exchange in list(self._exchanges.values()):
            self._discard(exchange)
        self._complete.clear()

    def check_timeouts(self, now: float) -> None:
        """End streams that are too slow. Called once a second while the client reads."""
        for exchange in list(self._exchanges.values()):
            if exchange.call is None:
                if exchange.is_waiting_for_room or exchange.is_whole:
                    continue
                if exchange.upload is not None:
                    if exchange.upload.is_idle and now - exchange.since > IDLE_SECONDS:
                        exchange.upload.stop(Refusal(REQUEST_TIMEOUT, "no line arrived in time"))
                    continue
                if is_too_slow(now - exchange.since, exchange.body.tell(), True):
                    exchange.refuse(Refusal(REQUEST_TIMEOUT, "the request was not complete in time"), now)
            elif exchange.is_stuck(now):
                self._wire.reset_stream(exchange.id, ErrorCodes.CANCEL)
                self._discard(exchange)

    def cancel_wait(self) -> None:
        """Cancel the waits of long polls; work in progress is finished."""
        self.is_cancelling_waits = True
        for exchange in list(self._exchanges.values()):
            exchange.cancel_wait()

    def discard_unfinished(self) -> None:
        """Discard incomplete requests and open streams after the client closed its side."""
        for exchange in list(self._exchanges.values()):
            if exchange.is_stream or (exchange.call is None and not exchange.is_whole):
                self._discard(exchange)

    def refuse_unfinished(self, now: float) -> None:
        """Refuse incomplete requests at shutdown, since the rest may take long to arrive."""
        refusal = shutting_down()
        for exchange in list(self._exchanges.values()):
            if exchange.call is not None or exchange.is_whole:
                continue
            if exchange.upload is not None:
                exchange.upload.stop(refusal)
            else:
                exchange.refuse(refusal, now)
