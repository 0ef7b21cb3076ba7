"""The dispatch of a request to a handler, the shard that owns its topic, or the supervisor.

Connections and the link pass all calls through here, so a response does not depend on how the request
arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from shared.contract.api_keys import ADMIN, ApiKey, ApiKeys
from shared.contract.endpoints import ROUTER, TOPIC, WATCH_ID, Endpoint, Match, refuse_body, refuse_parameters
from shared.contract.errors import NOT_IMPLEMENTED, Refusal, in_doubt
from shared.contract.query import query_text
from shared.http.answer import CLOSE
from shared.http.cors import Origins
from shared.http.head import Fields
from shared.ipc.link import LinkPool, LinkReply
from shared.ipc.remote_request import decode_remote_request, encode_answer
from shared.ipc.shared_placement import SharedPlacement
from topicsd.broker.broker import Broker
from topicsd.engine.queue.waiting_claims import end_waits
from topicsd.engine.read.read import Missing
from topicsd.engine.shard import Shard
from topicsd.engine.transfer.dead_letters import DeadLetters
from topicsd.engine.transfer.redrive import Redrives
from topicsd.service.access.audited_call import AuditedCall
from topicsd.service.access.key_handlers import KEY_OPERATIONS, KeyHandlers
from topicsd.service.call import Call
from topicsd.service.diff import Diff, ShardReads
from topicsd.service.handlers import Handler, Handlers
from topicsd.service.move_topic import MoveHandler
from topicsd.service.ownership import OwnershipHandlers
from topicsd.service.queues.redrive import RedriveHandler
from topicsd.service.queues.work import WorkOpener
from topicsd.service.records.record_reader import RecordReader
from topicsd.service.request_counts import RequestCounts
from topicsd.service.reshard import ReshardHandler
from topicsd.service.restore_topic import RestoreHandler
from topicsd.service.routes import RouteRules
from topicsd.service.shards.arrivals import Arrivals
from topicsd.service.shards.backup_hold import BackupHold
from topicsd.service.shards.limits import Caps, InFlight
from topicsd.service.shards.link_stream import LinkStream
from topicsd.service.shards.moves import Moves
from topicsd.service.shards.peers import Peers
from topicsd.service.shards.relocation import Relocations
from topicsd.service.shards.relocation_target import RelocationTarget
from topicsd.service.shards.remote_call import STREAMS, RemoteCaller, retry_advice
from topicsd.service.shards.survey import Surveys
from topicsd.service.shared.operations import SharedOperations
from topicsd.service.shared.read import SharedReadHandlers
from topicsd.service.shared.routing import BrokerProcessRouting, BrokerRouting
from topicsd.service.topic_list import list_topics
from topicsd.service.watch.streams import StreamServices
from topicsd.stream.stream import Stream

# When the whole server stops, the processes that sent requests over the link stop too, cancel the waits of
# those requests, and close with the answers. After this time only this worker is stopping, and it cancels
# them itself.
LINK_GRACE_SECONDS = 0.3
# The process that received the request has checked the scopes.
NO_SCOPES: frozenset[str] = frozenset()

NO_OPERATIONS: Final[Mapping[str, Handler]] = {}

OpenSocket = Callable[[Call, ApiKey | None], None]


def _no_sockets(call: Call, key: ApiKey | None) -> None:
    call.refuse(Refusal(NOT_IMPLEMENTED, "WebSockets are not supported here"))


def _in_flight(bound: int, peers: Peers | None) -> InFlight:
    if peers is None:
        return InFlight(bound)
    return InFlight(bound, peers.slot.in_flight_by_key, peers.in_flight_elsewhere())


class Dispatch:
    """The dispatch of one worker, with the handlers of its operations."""

    def __init__(
        self,
        shard: Shard,
        keys: ApiKeys,
        links: LinkPool,
        number: int,
        placement: SharedPlacement,
        *,
        peers: Peers | None = None,
        open_socket: OpenSocket = _no_sockets,
        broker: Broker | None = None,
        broker_number: int | None = None,
        operations: Mapping[str, Handler] = NO_OPERATIONS,
    ) -> None:
        """Create the dispatch of shard `number`; a server with several shards has peers.

        A broker process has a `broker`, and `operations` without a topic. `broker_number` is the owner
        number of a broker of this node, if it has one; in the broker process it is `number`.

        `open_socket` answers a request for a WebSocket, given the key of the request.
        """
        state = shard.state
        settings, loop = state.settings, state.loop
        self.keys = keys
        self.origins = Origins(settings.cors_origins)
        self.shard = number
        self.placement = placement
        self.broker = broker
        self._peers = peers
        self._open_socket = open_socket
        # Before the route runners start: a hidden topic has none.
        self.arrivals = Arrivals(state, shard.adopter, placement, links, peers)
        self.surveys = Surveys(state, placement, self.arrivals)
        both: dict[str, Any] = {
            "broker": broker,
            "broker_number": broker_number,
            "hidden": self.arrivals.hidden,
        }
        self.streams = StreamServices(shard, settings, loop, links, number, placement, peers, keys, **both)
        self._counts = RequestCounts(state.clock)
        self._remote_caller = RemoteCaller(
            links, peers, placement, loop, state.clock.monotonic, lambda: self.is_draining, broker_number
        )
        self.brokers = self._routing(shard, links, broker_number, operations)
        find_shared = None if self.brokers is None else self.brokers.find_shared
        self.route_rules = RouteRules(
            state, settings, links, self.streams.locate_source, peers is not None, find_shared
        )
        self._work = WorkOpener(state, settings, loop, self.streams.permits, self.streams.count_stream)
        caps = Caps(state, number, peers, links)
        self.moves = Moves(state, caps, links, number, placement, peers, find_shared)
        self.backup_hold = BackupHold(state)
        self.dead_letters = DeadLetters(state, self.moves.send)
        self.relocations = Relocations(shard, links, peers)
        self.relocation_target = RelocationTarget(shard, self.arrivals, peers)
        self._reshards = ReshardHandler(links, state.jobs)
        self._key_handlers = KeyHandlers(links, state.jobs, state.clock)
        self.handlers = self._make_handlers(shard, caps)
        self._in_flight = _in_flight(settings.max_inflight_per_key, peers)
        self._probes_need_key = settings.probe_auth
        self._incoming_calls: set[IncomingCall] = set()
        self._idle: asyncio.Future[None] | None = None
        self.misplaced_count = 0
        self.is_draining = False
        self._is_grace_over = False

    def _make_handlers(self, shard: Shard, caps: Caps) -> Handlers:
        state, counts = shard.state, self._counts
        reads = ShardReads(state, self.streams.feeds)
        redrives = RedriveHandler(Redrives(state, self.moves.send), state.clock, counts.performance)
        return Handlers(
            shard,
            caps,
            counts,
            self.route_rules.on_topic_deleted,
            {
                "diff": Diff[Missing](reads, state.settings, state.loop, state.clock, counts).start,
                **RecordReader[Missing](reads, counts.performance).table,
                "redrive": redrives.start,
                "move": MoveHandler(self.relocations, state.jobs, counts.performance).start,
                "restore": RestoreHandler(shard, caps, counts.performance).start,
                **OwnershipHandlers(shard, counts.performance).table,
            },
            self.redirect,
            lambda name: self._topic_owner(name) != self.shard,
            self.brokers,
        )

    def _routing(
        self, shard: Shard, links: LinkPool, broker_number: int | None, endpoints: Mapping[str, Handler]
    ) -> BrokerRouting | None:
        """Return the way to the broker of this node, or None without one."""
        if broker_number is None:
            return None
        way = broker_number, self.placement, links, self._remote_caller
        broker, reads = self.broker, self.streams.shared_reads
        if broker is None or reads is None:
            return BrokerRouting(*way)
        settings, loop, clock = shard.state.settings, shard.state.loop, shard.state.clock
        handlers = SharedReadHandlers(reads, self.streams.feeds, settings, loop, clock, self._counts)
        make = partial(
            SharedOperations,
            broker,
            settings,
            clock,
            self._counts,
            reads.seek,
            handlers.table,
            endpoints,
        )
        return BrokerProcessRouting(*way, broker, make)

    @property
    def remote_count(self) -> int:
        return self._remote_caller.count

    @property
    def lagging_count(self) -> int:
        """Return the number of streams whose clients have not read for a while."""
        return self.streams.lagging_count + self._work.lagging_count

    def count_misplaced(self) -> None:
        """Count a connection that closes to be placed anew."""
        self.misplaced_count += 1

    def owner_of(self, match: Match) -> int | None:
        """Return the shard that owns the request, or None for the supervisor."""
        endpoint = match.endpoint
        if not endpoint.is_data:
            return None
        if endpoint.variable == TOPIC:
            return self._topic_owner(match.name)
        if endpoint.is_broker and self.brokers is not None:
            return self.brokers.number
        wid = self.streams.ids.parse(match.name) if endpoint.variable == WATCH_ID else None
        # A request without an owner, as for a retired shard, is answered here or sent to the supervisor.
        return wid.shard if wid is not None and self.placement.is_owner(wid.shard) else self.shard

    def _topic_owner(self, name: str) -> int:
        """Return the shard of a topic; a broker itself answers, or sends on what is no shared topic."""
        return self.shard if self.broker is not None else self.placement.owner_of(name)

    def local_owner(self, match: Match | Refusal) -> int:
        """Return the shard that a broker sends the request to, or the broker itself."""
        owner = None
        if isinstance(match, Match) and isinstance(self.brokers, BrokerProcessRouting):
            owner = self.brokers.local_owner(match.name)
        return self.shard if owner is None else owner

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
                result = self.check_key(match, call.fields, call.query)
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
            elif call.fields.origin:
                refusal = self.origins.refuse_page(endpoint.method, call.fields)
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
            if endpoint.is_audited:
                call = AuditedCall.of(call, endpoint.operation)
            if not endpoint.has_handler:
                self._start_stream_or_rule(endpoint, owner, call, key)
            elif owner == self.shard:
                self.handlers.start(endpoint.operation, call)
            else:
                self._remote_caller.start(endpoint.operation, owner, call, key)
        except Exception as error:
            call.fail(endpoint.operation, error)

    def _start_stream_or_rule(
        self, endpoint: Endpoint, owner: int | None, call: Call, key: ApiKey | None
    ) -> None:
        """Start a call without a handler: of the supervisor, or for a stream, a watch or a route rule."""
        if owner != self.shard:
            self._remote_caller.start(endpoint.operation, owner, call, key)
        elif endpoint.is_broker:
            self._start_endpoint(endpoint.operation, call)
        elif endpoint.is_upgrade:
            self._open_socket(call, key)
        elif endpoint.is_stream:
            self._open_stream(endpoint.operation, call, key)
        elif endpoint.variable == ROUTER:
            self.route_rules.put(call, key)
        elif endpoint.operation == "reshard":
            self._reshards.start(call)
        elif endpoint.operation in KEY_OPERATIONS:
            self._key_handlers.start(endpoint.operation, call)
        else:
            assert endpoint.operation == "create_watch"
            self.streams.creator.create(call, key)

    def _start_endpoint(self, operation: str, call: Call) -> None:
        """Start an operation of the brokers without a topic, in a broker; elsewhere there is none."""
        if isinstance(self.brokers, BrokerProcessRouting):
            self.brokers.operations.endpoints[operation](call)
        else:
            call.refuse(Refusal(NOT_IMPLEMENTED, "the server has no brokers: set TOPICS_STORE_URL"))

    def _open_stream(self, operation: str, call: Call, key: ApiKey | None) -> None:
        if operation == "watch":
            self.streams.opener.open(call, key)
        elif operation == "stream":
            self.streams.topic_stream_opener.open_one(call, key)
        elif operation == "stream_topics":
            self.streams.topic_stream_opener.open_several(call, key)
        elif self.brokers is None or call.is_unshared or not self.handlers.is_unknown(call.name):
            self._work.open(call, key)
        else:
            self.brokers.open_jobs(call, key, partial(self._work.open, call, key))

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
            owner = self._topic_owner(call.name)
            if owner == self.shard:
                self.handlers.start(operation, call)
            else:
                self._remote_caller.start(operation, owner, call, call.key)
        except Exception as error:
            call.fail(operation, error)

    def redirect(self, operation: str, call: Call) -> None:
        """Run an operation at the present owner of its topic, instead of on this shard."""
        self.run_at_owner(operation, call)

    def refuse_key(self, match: Match, fields: Fields, query: str) -> Refusal | None:
        """Return the refusal of the request's key, or of its absence, or None.

        Without keys, return the refusal of a page of another origin.
        """
        if not self.keys.are_required:
            return self.origins.refuse_page(match.endpoint.method, fields)
        result = self.check_key(match, fields, query)
        return result if isinstance(result, Refusal) else None

    def check_key(self, match: Match, fields: Fields, query: str) -> ApiKey | Refusal | None:
        endpoint = match.endpoint
        if endpoint.is_signed or (endpoint.is_open and not self._probes_need_key):
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
        call.key, call.prefixes = key, key.prefixes
        call.is_admin = ADMIN in key.scopes
        if not (is_counted and self._in_flight.bound):
            return None
        on_answer = self._in_flight.enter(key)
        if isinstance(on_answer, Refusal):
            return on_answer
        call.on_answer = on_answer
        return None

    def list_topics(self, payload: bytes, reply: Callable[[bytes], object]) -> None:
        """Pass a page of the topics of this shard to `reply`, or of all shared topics in a broker."""
        if isinstance(self.brokers, BrokerProcessRouting):
            self.brokers.list_topics(payload, reply)
        else:
            list_topics(self.handlers.shard.state, self.arrivals.hidden, payload, reply)

    # -- over the link -------------------------------------------------------------------------------------

    def answer_link(self, payload: bytes, reply: LinkReply) -> None:
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
        if request.event_attributes:
            fields = msgspec.structs.replace(fields, event_attributes=request.event_attributes)
        started = self.handlers.monotonic()
        body = reply.body or request.body
        call = IncomingCall(request.name, request.query, fields, body, started, reply=reply, dispatch=self)
        call.is_head, call.item, call.prefixes = request.is_head, request.item, request.prefixes
        call.is_admin, call.retried_after_ms = request.is_admin, request.retried_after_ms
        call.is_unshared = request.is_unshared
        call.key = self.keys.by_id(request.key_id)
        self._incoming_calls.add(call)
        reply.cancel_wait = call.cancel
        try:
            if request.retried_after_ms and not self.handlers.is_key_kept(
                request.name, request.retried_after_ms
            ):
                call.refuse(in_doubt(self.shard, retry_advice(request.operation, is_keyed=False)))
            elif request.operation in STREAMS:
                key = ApiKey(request.key_id, NO_SCOPES, request.prefixes) if request.key_id else None
                self._open_stream(request.operation, call, key)
            elif not isinstance(self.brokers, BrokerProcessRouting):
                self.handlers.start(request.operation, call)
            elif request.operation in self.brokers.operations.endpoints:
                self._start_endpoint(request.operation, call)
            else:
                self.brokers.answer_shard(request.operation, call)
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
        end_waits(self.handlers.shard.state)
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


class IncomingCall(Call, kw_only=True, eq=False):
    """A remote request that arrived over the link."""

    reply: LinkReply
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
