"""The dispatch of a request to a handler, the shard that owns its topic, or the supervisor.

Connections and the link pass all calls through here, so a response does not depend on how the request
arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from shared.contract.api_keys import ADMIN, ApiKey, ApiKeys
from shared.contract.endpoints import ROUTER, TOPIC, WATCH_ID, Endpoint, Match, refuse_body, refuse_parameters
from shared.contract.errors import NOT_IMPLEMENTED, Refusal
from shared.contract.names import topic_id
from shared.http.answer import CLOSE
from shared.http.head import Fields
from shared.ipc.connection_mailbox import ConnectionSender
from shared.ipc.handoff import DATA_BYTES_MAX
from shared.ipc.link import LinkPool, LinkRequest
from shared.ipc.placement import shard_of
from shared.ipc.remote_request import decode_remote_request, encode_answer
from topicsd.engine.queue.claim import drain_claims
from topicsd.service.call import Call
from topicsd.service.diff import Diff
from topicsd.service.handlers import Handlers
from topicsd.service.input.query import query_text
from topicsd.service.queues.dead_letters import DeadLetters
from topicsd.service.queues.redrive import Redrives
from topicsd.service.queues.work import WorkOpener
from topicsd.service.routes import RouteRules
from topicsd.service.shards.in_flight import InFlight
from topicsd.service.shards.link_stream import LinkStream
from topicsd.service.shards.peers import Peers
from topicsd.service.shards.remote_call import STREAMS, RemoteCaller, in_doubt
from topicsd.service.watch.streams import Streams
from topicsd.stream.stream import Stream

# When the whole server stops, the processes that sent requests over the link stop too, cancel the waits of
# those requests, and close with the answers. After this time only this worker is stopping, and it cancels
# them itself.
LINK_GRACE_SECONDS = 0.3
# The process that received the request has checked the scopes.
NO_SCOPES: frozenset[str] = frozenset()

OpenSocket = Callable[[Call, ApiKey | None], None]


def _no_sockets(call: Call, key: ApiKey | None) -> None:
    call.refuse(Refusal(NOT_IMPLEMENTED, "WebSockets are not supported here"))


class Dispatch:
    """The dispatch of one worker; `peers` and `sender` exist on a server with several shards."""

    def __init__(
        self,
        handlers: Handlers,
        keys: ApiKeys,
        links: LinkPool,
        shard: int,
        shard_count: int,
        peers: Peers | None = None,
        connection_sender: ConnectionSender | None = None,
    ) -> None:
        self.handlers = handlers
        self.keys = keys
        self.shard = shard
        self._shard_count = shard_count
        self._peers = peers
        self._connection_sender = connection_sender
        settings = handlers.settings
        self.streams = Streams(handlers.shard, settings, handlers.loop, links, shard, shard_count, peers)
        state, streams = handlers.shard.state, self.streams
        diff = Diff(state, settings, handlers.loop, handlers.counts, streams.feeds)
        handlers.add("diff", diff.start)
        self._work = WorkOpener(state, settings, handlers.loop, streams.permits, streams.count_stream)
        self.route_rules = RouteRules(state, settings, links, streams.locate_source, peers is not None)
        handlers.on_topic_deleted = self.route_rules.on_topic_deleted
        counts = () if peers is None else (peers.slot.in_flight_by_key, peers.in_flight_elsewhere())
        self._in_flight = InFlight(settings.max_inflight_per_key, *counts)
        self._probes_need_key = settings.probe_auth
        self._remote_caller = RemoteCaller(
            links, peers, handlers.loop, handlers.monotonic, lambda: self.is_draining
        )
        self.dead_letters = DeadLetters(state, handlers.loop, self.run_at_owner)
        redrives = Redrives(state, handlers.loop, self.run_at_owner, handlers.performance)
        handlers.add("redrive", redrives.start)
        self._incoming_calls: set[IncomingCall] = set()
        self._idle: asyncio.Future[None] | None = None
        self.open_socket: OpenSocket = _no_sockets
        """Answers a request for a WebSocket, given the key of the request."""
        self.moved_count = 0
        self.is_draining = False
        self._is_grace_over = False

    @property
    def remote_count(self) -> int:
        return self._remote_caller.count

    @property
    def lagging_count(self) -> int:
        """Return the number of streams whose clients have not read for a while."""
        return self.streams.lagging_count + self._work.lagging_count

    def owner_of(self, match: Match) -> int | None:
        """Return the shard that owns the request, or None for the supervisor."""
        endpoint = match.endpoint
        if not endpoint.is_data:
            return None
        if endpoint.variable == TOPIC:
            return shard_of(topic_id(match.name), self._shard_count)
        wid = self.streams.ids.parse(match.name) if endpoint.variable == WATCH_ID else None
        # A request without an owner is answered here, refused, or sent to the supervisor.
        return self.shard if wid is None else wid.shard

    def start(self, match: Match | Refusal, owner: int | None, call: Call) -> None:
        """Answer the call, now or later, once."""
        if isinstance(match, Refusal):
            call.refuse(match)
            return
        endpoint = match.endpoint
        call.name = match.name
        if match.item:
            call.item = match.item
        key: ApiKey | None = None
        refusal: Refusal | None
        try:
            if self.keys.are_required:
                result = self._check_key(match, call.fields, call.query)
                if isinstance(result, Refusal):
                    refusal = result
                else:
                    key = result
                    refusal = (
                        None if key is None else self._bind(key, call, is_counted=not endpoint.is_stream)
                    )
                if refusal is not None:
                    call.refuse(refusal)
                    return
            if call.query:
                refusal = refuse_parameters(endpoint, call.query)
                if refusal is not None:
                    call.refuse(refusal)
                    return
            if not endpoint.takes_body and call.body:
                refusal = refuse_body(endpoint, call.body)
                if refusal is not None:
                    call.refuse(refusal)
                    return
            if not endpoint.is_plain:
                self._start_other(endpoint, owner, call, key)
            elif owner == self.shard:
                self.handlers.start(endpoint.operation, call)
            else:
                self._remote_caller.start(endpoint.operation, owner, call, key)
        except Exception as error:
            call.fail(endpoint.operation, error)

    def _start_other(self, endpoint: Endpoint, owner: int | None, call: Call, key: ApiKey | None) -> None:
        """Start a call that is not about one topic."""
        if owner != self.shard:
            self._remote_caller.start(endpoint.operation, owner, call, key)
        elif endpoint.is_upgrade:
            self.open_socket(call, key)
        elif endpoint.is_stream:
            self._open_stream(endpoint.operation, call, key)
        elif endpoint.variable == ROUTER:
            self.route_rules.put(call, key)
        else:
            self.streams.creator.create(call, key)

    def _open_stream(self, operation: str, call: Call, key: ApiKey | None) -> None:
        if operation == "work":
            self._work.open(call, key)
        else:
            self.streams.opener.open(call, key)

    def start_with_key(self, key: ApiKey | None, operation: str, call: Call) -> None:
        """Start an operation on a topic that the key of its connection permits."""
        refusal = None if key is None else self._bind(key, call, is_counted=True)
        if refusal is None:
            self.run_at_owner(operation, call)
        else:
            call.refuse(refusal)

    def run_at_owner(self, operation: str, call: Call) -> None:
        """Run an operation on a topic at its owner, without a check of keys."""
        try:
            owner = shard_of(topic_id(call.name), self._shard_count)
            if owner == self.shard:
                self.handlers.start(operation, call)
            else:
                self._remote_caller.start(operation, owner, call, None)
        except Exception as error:
            call.fail(operation, error)

    def refuse_key(self, match: Match, fields: Fields, query: str) -> Refusal | None:
        """Return the refusal of the request's key, or of its absence, or None."""
        result = self._check_key(match, fields, query)
        return result if isinstance(result, Refusal) else None

    def _check_key(self, match: Match, fields: Fields, query: str) -> ApiKey | Refusal | None:
        endpoint = match.endpoint
        if endpoint.is_open and not self._probes_need_key:
            return None
        if endpoint.takes_token and fields.sent_key is None:
            token = query_text(query, "token")
            if token is not None:
                return self.keys.check_token(token, endpoint.scopes, match.bound_name)
        return self.keys.check_sent(fields.sent_key, endpoint.scopes, match.bound_name)

    def change_keys(self, keys: ApiKeys) -> None:
        """Replace the keys, and end streams that they no longer allow. WebSockets check themselves."""
        self.keys = keys
        self.streams.check_keys(keys)
        self._work.check_keys(keys)

    def _bind(self, key: ApiKey, call: Call, is_counted: bool) -> Refusal | None:
        """Apply the key's limits to the call, and count it as in flight until it is answered."""
        call.prefixes = key.prefixes
        call.is_admin = ADMIN in key.scopes
        if not (is_counted and self._in_flight.bound):
            return None
        on_answer = self._in_flight.enter(key)
        if isinstance(on_answer, Refusal):
            return on_answer
        call.on_answer = on_answer
        return None

    # -- over the link -------------------------------------------------------------------------------------

    def answer_link(self, payload: bytes, reply: LinkRequest) -> None:
        """Answer a remote request for a topic of this shard."""
        request = decode_remote_request(payload)
        # Positional arguments: keyword arguments, or a copy of a template, are several times slower.
        fields = Fields(
            None,
            None,
            False,
            request.content_type,
            "",
            request.accept,
            "",
            None,
            request.idempotency_key,
            request.last_event_id,
        )
        started = self.handlers.monotonic()
        body = reply.body or request.body
        call = IncomingCall(request.name, request.query, fields, body, started, reply=reply, dispatch=self)
        call.is_head, call.item, call.prefixes = request.is_head, request.item, request.prefixes
        call.is_admin = request.is_admin
        self._incoming_calls.add(call)
        reply.cancel_wait = call.cancel
        try:
            if request.retried_after_ms and not self.handlers.is_key_kept(
                request.name, request.retried_after_ms
            ):
                call.refuse(in_doubt(request.operation, self.shard, is_keyed=False))
            elif request.operation in STREAMS:
                key = ApiKey(request.key_id, NO_SCOPES, request.prefixes) if request.key_id else None
                self._open_stream(request.operation, call, key)
            else:
                self.handlers.start(request.operation, call)
        except Exception as error:
            call.fail(request.operation, error)
        if self._is_grace_over:
            call.cancel()

    def on_incoming_answered(self, call: IncomingCall) -> None:
        self._incoming_calls.discard(call)
        if self._idle is not None and not self._incoming_calls and not self._idle.done():
            self._idle.set_result(None)

    def drain(self) -> None:
        """Stop waiting for new records and jobs before the process ends; finish calls in flight."""
        self.is_draining = True
        self.streams.drain()
        self._work.drain()
        drain_claims(self.handlers.shard.state)
        self.handlers.loop.call_later(LINK_GRACE_SECONDS, self._cancel_incoming_waits)

    def _cancel_incoming_waits(self) -> None:
        self._is_grace_over = True
        for call in list(self._incoming_calls):
            call.cancel()

    async def wait_until_idle(self) -> None:
        """Wait until all remote requests are answered."""
        if self._incoming_calls:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    # -- moving a connection -------------------------------------------------------------------------------

    def move(self, transport: asyncio.Transport, data: bytes, shard: int) -> bool:
        """Hand a connection and its unprocessed bytes over to a shard; return False if it stays.

        The caller makes sure that no call is unanswered. Unwritten output would be lost, so the connection
        stays while there is any.
        """
        if self._connection_sender is None or self.is_draining or len(data) > DATA_BYTES_MAX:
            return False
        if transport.get_write_buffer_size() or transport.is_closing():
            return False
        if self._peers is not None and self._peers.refusal(shard) is not None:
            return False
        connection = transport.get_extra_info("socket")
        if connection is None or not self._connection_sender.send_connection_to(
            shard, connection.fileno(), data
        ):
            return False
        self.moved_count += 1
        transport.abort()
        return True


class IncomingCall(Call, kw_only=True, eq=False):
    """A remote request that arrived over the link."""

    reply: LinkRequest
    dispatch: Dispatch

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        # The asking process closes its connection, as it would after its own response.
        self.reply(encode_answer(status, fields + CLOSE if self.is_last else fields, parts))
        self.dispatch.on_incoming_answered(self)

    def open_stream(self, fields: bytes) -> Stream:
        # `wait_until_idle` does not wait for streams: their shutdown ends them.
        self.dispatch.on_incoming_answered(self)
        return LinkStream(self.reply, fields)

    def cancel(self) -> None:
        if self.cancel_wait is not None:
            self.cancel_wait()
