"""The routes over all shards, which the supervisor creates, changes, lists and deletes.

The shard of its destination keeps a route. The supervisor, a single process, knows all routes
(`route_graph.py`) and decides which exclude each other. It asks each shard for its routes before its first
decision, and again when the shard has a new worker; for a shard that is down it uses the routes it knows. A
route also ends without the supervisor, together with its source, so before a route is refused because of
another, all shards are asked again.

The steps of a PUT, one PUT at a time for each name:

P1  The checks; a refusal here leaves no trace. The route is reserved from now on.
P2  The shard of the source creates it if it is absent, then the shard of the destination creates that, if
    requested, both as for a PUT of the topic. A topic created for a route that is then refused is deleted
    again if still empty.
P3  The shard of the destination keeps the route. This step is last, so that no route exists without both of
    its topics. A crash between any two steps leaves empty topics at worst, and the PUT can be sent again.
P4  Each other route of the cycle that the route closes, if it does not count hops yet, is put again as part
    of a cycle, under its own turn. If that fails, the response is the failure, and the PUT can be sent again.
P5  When it is unknown whether the shard keeps the route, the response is 504, and the supervisor asks the
    shard for its routes before the next decision.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from router.control.route_graph import RouteGraph
from router.control.watch_home import ShardRefusals
from shared.contract.errors import TOPIC_NOT_FOUND, Refusal, in_doubt, no_answer
from shared.contract.route_rule import (
    DeleteRoute,
    PutRoute,
    RouteQuery,
    RouteRule,
    RouteStatus,
    TopicDeletion,
    decode_route_status,
    decode_route_statuses,
    encode_route_message,
)
from shared.http.answer import refusal_in
from shared.ipc.board import Board, WorkerState
from shared.ipc.link import NEVER_SENT
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import OwnerLookup
from shared.ipc.remote_request import RemoteRequest, decode_answer, encode_remote_request

AskShard = Callable[[int, LinkKind, bytes], Awaitable[bytes | None]]
"""Asks a shard; None: it ended and may have done it; `NEVER_SENT`: it was not reached."""

_decode_json = msgspec.json.Decoder(dict[str, Any]).decode
_decode_is_deleted = msgspec.msgpack.Decoder(bool).decode


class RequestRefused(Exception):
    """The refusal of a request to a shard."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class RouteRegistry:
    def __init__(
        self, shards: ShardRefusals, board: Board, placement: OwnerLookup, ask: AskShard, bound: int
    ) -> None:
        self._shards = shards
        self._board = board
        self._placement = placement
        self._ask_any = ask
        self.graph = RouteGraph(placement, bound)
        self._known_pids: dict[int, int] = {}
        """The pid of the worker whose routes are known, by shard."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def shard_count(self) -> int:
        return len(self._shards)

    def has_refused_to_start(self, shard: int) -> bool:
        return self._board.slot(shard).state is WorkerState.REFUSED

    async def _ask(self, shard: int, kind: LinkKind, payload: bytes) -> bytes | None:
        """Ask a shard, without waiting for one that is known to be down."""
        if self._shards.refusal(shard) is not None:
            return NEVER_SENT
        return await self._ask_any(shard, kind, payload)

    # -- the routes of all shards --------------------------------------------------------------------------

    async def list_shard(self, shard: int, request: RouteQuery) -> list[RouteStatus] | None:
        """Return routes of a shard in name order; None when the shard does not answer."""
        answer = await self._ask(shard, LinkKind.LIST_ROUTES, encode_route_message(request))
        return decode_route_statuses(answer) if answer else None

    async def _fetch_routes(self, shard: int) -> Refusal | None:
        """Ask the shard for all its routes."""
        pid = self._board.slot(shard).pid
        reports = await self.list_shard(shard, RouteQuery())
        if reports is None:
            return self._unreachable(shard)
        self.graph.learn(shard, [report.rule for report in reports])
        self._known_pids[shard] = pid
        return None

    async def _fetch_unknown(self) -> Refusal | None:
        """Ask each shard whose routes are unknown; return the refusal of one that does not answer."""
        unknown = [shard for shard in range(len(self._shards)) if self._is_unknown(shard)]
        refusals = await asyncio.gather(*map(self._fetch_routes, unknown))
        return next(filter(None, refusals), None)

    def _is_unknown(self, shard: int) -> bool:
        slot, known = self._board.slot(shard), self._known_pids.get(shard)
        return not known or (slot.state is WorkerState.READY and slot.pid != known)

    async def _refusal(self, rule: RouteRule) -> Refusal | None:
        unknown = await self._fetch_unknown()
        if unknown is not None or self.graph.refusal(rule) is None:
            return unknown
        await asyncio.gather(*map(self._fetch_routes, range(len(self._shards))))
        return await self._fetch_unknown() or self.graph.refusal(rule)

    def _lock(self, name: str) -> asyncio.Lock:
        """Return the lock under which operations on one name run one after the other."""
        return self._locks.setdefault(name, asyncio.Lock())

    # -- creating a route ----------------------------------------------------------------------------------

    async def put(self, rule: RouteRule) -> RouteStatus | Refusal:
        report = await self._put(rule)
        if isinstance(report, Refusal):
            return report
        return await self._put_others_in_cycle(report.rule) or report

    async def _put_others_in_cycle(self, rule: RouteRule) -> Refusal | None:
        for other in self.graph.others_in_cycle(rule):
            if other.stamps:
                continue
            # The route as it is now: a PUT of it in the meantime finds the cycle itself.
            known = self.graph.find(other.name)
            report = None if known is None else await self._put(known)
            if isinstance(report, Refusal):
                return report
        return None

    async def _put(self, rule: RouteRule) -> RouteStatus | Refusal:
        async with self._lock(rule.name):
            refusal = await self._refusal(rule)
            if refusal is not None:
                return refusal
            rule = msgspec.structs.replace(rule, is_in_cycle=bool(self.graph.others_in_cycle(rule)))
            self.graph.reserve(rule)
            created: list[str] = []
            try:
                report = await self._create(rule, created)
            except RequestRefused as error:
                self.graph.release(rule.name)
                await self._delete_created(created)
                return error.refusal
            except BaseException:
                self._mark_in_doubt(rule)
                raise
            if isinstance(report, Refusal):
                self._mark_in_doubt(rule)
            else:
                self.graph.confirm(report.rule)
            return report

    def _mark_in_doubt(self, rule: RouteRule) -> None:
        """Record that the shard may or may not keep the route: it is asked before the next decision."""
        self.graph.confirm(rule)
        self._known_pids[self.graph.shard_of(rule)] = 0

    async def _delete_created(self, topics: Sequence[str]) -> None:
        for name in topics:
            if not self.graph.touching(name):
                with contextlib.suppress(RequestRefused):
                    await self._request("delete_topic", name, "if_empty=true")

    async def _create(self, rule: RouteRule, created: list[str]) -> RouteStatus | Refusal:
        """Create the topics and the route; add created topics to `created`.

        Raise `RequestRefused` when no shard keeps the route; return a refusal when one may keep it.
        """
        names = [rule.source] if rule.webhook is not None else [rule.source, rule.dest]
        states = {name: await self._state(name) for name in names}
        source = states[rule.source]
        if rule.dest in states and states[rule.dest] is None and not rule.makes_dest:
            raise RequestRefused(Refusal(TOPIC_NOT_FOUND, f'dest: topic "{rule.dest}" does not exist'))
        for name, state in states.items():
            if state is None and (await self._request("put_topic", name))["created"]:
                created.append(name)
        source = source or await self._state(rule.source)
        # If a client deletes the source now, the shard that is to keep the route finds it missing.
        source_epoch = 0 if source is None else source["epoch"]
        shard = self.graph.shard_of(rule)
        answer = await self._ask(
            shard, LinkKind.PUT_ROUTE, encode_route_message(PutRoute(rule, source_epoch))
        )
        if answer is None:
            return in_doubt(shard, "; retry the request")
        return decode_route_status(self._body(shard, answer))

    async def _state(self, name: str) -> dict[str, Any] | None:
        """Return the state of a topic; None when it does not exist."""
        try:
            return await self._request("topic_state", name, "touch=false")
        except RequestRefused as error:
            if error.refusal.code == TOPIC_NOT_FOUND:
                return None
            raise

    async def _request(self, operation: str, name: str, query: str = "") -> dict[str, Any]:
        """Send a request to the shard of the topic, as a client would."""
        shard = self._placement.owner_of(name)
        request = RemoteRequest(operation, name, query, "application/json", "", "", b"")
        answer = await self._ask(shard, LinkKind.REQUEST, encode_remote_request(request))
        return _decode_json(self._body(shard, answer))

    def _body(self, shard: int, answer: bytes | None) -> bytes:
        """Return the body of a successful answer; raise `RequestRefused` otherwise."""
        if not answer:
            raise RequestRefused(self._unreachable(shard))
        status, _, body = decode_answer(answer)
        if status >= 400:
            raise RequestRefused(refusal_in(body))
        return body

    def _unreachable(self, shard: int) -> Refusal:
        return self._shards.refusal(shard) or no_answer(shard)

    # -- ending routes -------------------------------------------------------------------------------------

    async def find(self, name: str) -> RouteStatus | Refusal | None:
        """Return the route as its shard reports it; None when it does not exist.

        Return a refusal when its shard may be down.
        """
        request = RouteQuery(name=name)
        shards = range(len(self._shards))
        lists = await asyncio.gather(*(self.list_shard(shard, request) for shard in shards))
        routes = [route for reports in lists if reports for route in reports]
        if routes:
            return routes[0]
        down = [shard for shard, reports in zip(shards, lists, strict=True) if reports is None]
        return self._unreachable(down[0]) if down else None

    async def delete(self, name: str) -> bool | Refusal:
        """Delete the route; return whether it existed."""
        async with self._lock(name):
            route = await self.find(name)
            if route is None or isinstance(route, Refusal):
                return route or False
            return await self._delete(route.rule, None)

    async def _delete(self, rule: RouteRule, source_epoch: int | None) -> bool | Refusal:
        """Delete a route at its shard; return whether it no longer exists."""
        shard = self.graph.shard_of(rule)
        request = encode_route_message(DeleteRoute(rule.name, source_epoch))
        answer = await self._ask(shard, LinkKind.DELETE_ROUTE, request)
        if answer is None:
            self._known_pids[shard] = 0
            return in_doubt(shard, "; retry the request")
        try:
            is_deleted = _decode_is_deleted(self._body(shard, answer))
        except RequestRefused as error:
            return error.refusal
        if is_deleted:
            self.graph.drop(rule.name)
        return is_deleted

    async def end_routes_of_topic(self, deleted: TopicDeletion) -> list[str]:
        """Return the names of the routes that end with a deleted topic.

        The shard of the topic ended the routes into it together with the topic. The routes from it are ended
        here, each at its shard; where a shard cannot be reached, its route runner will find that the source
        is deleted.
        """
        await self._fetch_unknown()
        rules = self.graph.touching(deleted.name)
        # Without the lock of the name: a PUT that holds it may wait for this call.
        ended = await asyncio.gather(*(self._end_route(rule, deleted) for rule in rules))
        return [rule.name for rule, is_deleted in zip(rules, ended, strict=True) if is_deleted]

    async def _end_route(self, rule: RouteRule, deleted: TopicDeletion) -> bool:
        if rule.source == deleted.name:
            # The shard knows which epoch of the source the route copies from.
            return await self._delete(rule, deleted.epoch) is not False
        # Checked, not assumed: if the topic exists again, the route may exist too.
        reports = await self.list_shard(self.graph.shard_of(rule), RouteQuery(name=rule.name))
        if reports == []:
            self.graph.drop(rule.name)
        return reports == []
