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
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import msgspec

from router.control.route_graph import ForwardGraph
from shared.contract.errors import IN_DOUBT, NOT_READY, TOPIC_NOT_FOUND, Refusal
from shared.contract.names import topic_id
from shared.contract.route_rule import (
    DeleteForward,
    ForwardRule,
    ForwardsAsked,
    PutForward,
    ToldForward,
    TopicGone,
    decode_told_forward,
    decode_told_forwards,
    encode_forward,
)
from shared.http.answer import refusal_in
from shared.ipc.board import Board, WorkerState
from shared.ipc.link import NEVER_SENT, LinkKind
from shared.ipc.placement import shard_of
from shared.ipc.remote_request import Forwarded, decode_answer, encode_forwarded

RETRY_AFTER_MS: Final = 1000

Ask = Callable[[int, LinkKind, bytes], Awaitable[bytes | None]]
"""Asks a shard; None: it ended and may have done it; `NEVER_SENT`: it was not reached."""

_decode_json = msgspec.json.Decoder(dict[str, Any]).decode
_decode_over = msgspec.msgpack.Decoder(bool).decode


class Shards(Protocol):
    """The workers, as `router/accept/worker_channels.py` presents them."""

    def __len__(self) -> int: ...
    def refusal(self, shard: int) -> Refusal | None: ...


class Failed(Exception):
    """Ends a PUT after its checks."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class ForwardControl:
    def __init__(self, shards: Shards, board: Board, ask: Ask, bound: int) -> None:
        self._shards = shards
        self._board = board
        self._ask_any = ask
        self.graph = ForwardGraph(len(shards), bound)
        self._learned_from = [0] * len(shards)
        """The pid of the worker whose routes are known, by shard."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def shard_count(self) -> int:
        return len(self._shards)

    def does_not_start(self, shard: int) -> bool:
        return self._board.slot(shard).state is WorkerState.REFUSED

    async def _ask(self, shard: int, kind: LinkKind, payload: bytes) -> bytes | None:
        """Ask a shard, without waiting for one that is known to be down."""
        if self._shards.refusal(shard) is not None:
            return NEVER_SENT
        return await self._ask_any(shard, kind, payload)

    # -- knowing the routes --------------------------------------------------------------------------------

    async def list_shard(self, shard: int, asked: ForwardsAsked) -> list[ToldForward] | None:
        """Return routes of a shard in name order; None when the shard does not answer."""
        answer = await self._ask(shard, LinkKind.LIST_FORWARDS, encode_forward(asked))
        return decode_told_forwards(answer) if answer else None

    async def _learn(self, shard: int) -> Refusal | None:
        """Ask the shard for all its routes."""
        pid = self._board.slot(shard).pid
        told = await self.list_shard(shard, ForwardsAsked())
        if told is None:
            return self._not_reached(shard)
        self.graph.learn(shard, [one.rule for one in told])
        self._learned_from[shard] = pid
        return None

    async def _know_all(self) -> Refusal | None:
        """Ask each shard whose routes are unknown; return the refusal of one that does not answer."""
        unknown = [shard for shard in range(len(self._shards)) if self._is_unknown(shard)]
        refusals = await asyncio.gather(*map(self._learn, unknown))
        return next(filter(None, refusals), None)

    def _is_unknown(self, shard: int) -> bool:
        slot, known = self._board.slot(shard), self._learned_from[shard]
        return not known or (slot.state is WorkerState.READY and slot.pid != known)

    async def _refusal(self, rule: ForwardRule) -> Refusal | None:
        unknown = await self._know_all()
        if unknown is not None or self.graph.refusal(rule) is None:
            return unknown
        await asyncio.gather(*map(self._learn, range(len(self._shards))))
        return await self._know_all() or self.graph.refusal(rule)

    def _turn(self, name: str) -> asyncio.Lock:
        """Return the lock under which operations on one name run one after the other."""
        return self._turns.setdefault(name, asyncio.Lock())

    # -- creating a route ----------------------------------------------------------------------------------

    async def put(self, rule: ForwardRule) -> ToldForward | Refusal:
        told = await self._put(rule)
        if isinstance(told, Refusal):
            return told
        return await self._tell_around(told.rule) or told

    async def _tell_around(self, rule: ForwardRule) -> Refusal | None:
        for other in self.graph.around(rule):
            if other.stamps:
                continue
            # The route as it is now: a PUT of it in the meantime finds the cycle itself.
            known = self.graph.find(other.name)
            told = None if known is None else await self._put(known)
            if isinstance(told, Refusal):
                return told
        return None

    async def _put(self, rule: ForwardRule) -> ToldForward | Refusal:
        async with self._turn(rule.name):
            refusal = await self._refusal(rule)
            if refusal is not None:
                return refusal
            rule = msgspec.structs.replace(rule, is_in_cycle=bool(self.graph.around(rule)))
            self.graph.reserve(rule)
            made: list[str] = []
            try:
                told = await self._make(rule, made)
            except Failed as failed:
                self.graph.give_back(rule.name)
                await self._unmake(made)
                return failed.refusal
            except BaseException:
                self._doubt(rule)
                raise
            if isinstance(told, Refusal):
                self._doubt(rule)
            else:
                self.graph.keep(told.rule)
            return told

    def _doubt(self, rule: ForwardRule) -> None:
        """Record that the shard may or may not keep the route: it is asked before the next decision."""
        self.graph.keep(rule)
        self._learned_from[self.graph.shard_of(rule)] = 0

    async def _unmake(self, topics: Sequence[str]) -> None:
        for name in topics:
            if not self.graph.touching(name):
                with contextlib.suppress(Failed):
                    await self._request("delete_topic", name, "if_empty=true")

    async def _make(self, rule: ForwardRule, made: list[str]) -> ToldForward | Refusal:
        """Create the topics and the route; add created topics to `made`.

        Raise `Failed` when no shard keeps the route; return a refusal when one may keep it.
        """
        source, dest = await self._state(rule.source), await self._state(rule.dest)
        if dest is None and not rule.makes_dest:
            raise Failed(Refusal(TOPIC_NOT_FOUND, f'dest: topic "{rule.dest}" does not exist'))
        for name, state in ((rule.source, source), (rule.dest, dest)):
            if state is None and (await self._request("put_topic", name))["created"]:
                made.append(name)
        source = source or await self._state(rule.source)
        # If a client deletes the source now, the shard that is to keep the route finds it missing.
        source_epoch = 0 if source is None else source["epoch"]
        shard = self.graph.shard_of(rule)
        answer = await self._ask(shard, LinkKind.PUT_FORWARD, encode_forward(PutForward(rule, source_epoch)))
        if answer is None:
            return _in_doubt(shard)
        return decode_told_forward(self._body(shard, answer))

    async def _state(self, name: str) -> dict[str, Any] | None:
        """Return the state of a topic; None when it does not exist."""
        try:
            return await self._request("topic_state", name, "touch=false")
        except Failed as failed:
            if failed.refusal.code == TOPIC_NOT_FOUND:
                return None
            raise

    async def _request(self, operation: str, name: str, query: str = "") -> dict[str, Any]:
        """Send a request to the shard of the topic, as a client would."""
        shard = shard_of(topic_id(name), len(self._shards))
        request = Forwarded(operation, name, query, "application/json", "", "", b"")
        answer = await self._ask(shard, LinkKind.REQUEST, encode_forwarded(request))
        return _decode_json(self._body(shard, answer))

    def _body(self, shard: int, answer: bytes | None) -> bytes:
        """Return the body of a successful answer; raise `Failed` otherwise."""
        if not answer:
            raise Failed(self._not_reached(shard))
        status, _, body = decode_answer(answer)
        if status >= 400:
            raise Failed(refusal_in(body))
        return body

    def _not_reached(self, shard: int) -> Refusal:
        message = f"shard {shard} does not answer"
        return self._shards.refusal(shard) or Refusal(NOT_READY, message, {"shard": shard}, RETRY_AFTER_MS)

    # -- ending routes -------------------------------------------------------------------------------------

    async def find(self, name: str) -> ToldForward | Refusal | None:
        """Return the route as its shard reports it; None when it does not exist.

        Return a refusal when its shard may be down.
        """
        asked = ForwardsAsked(name=name)
        shards = range(len(self._shards))
        lists = await asyncio.gather(*(self.list_shard(shard, asked) for shard in shards))
        found = [one for told in lists if told for one in told]
        if found:
            return found[0]
        down = [shard for shard, told in zip(shards, lists, strict=True) if told is None]
        return self._not_reached(down[0]) if down else None

    async def delete(self, name: str) -> bool | Refusal:
        """Delete the route; return whether it existed."""
        async with self._turn(name):
            found = await self.find(name)
            if found is None or isinstance(found, Refusal):
                return found or False
            return await self._delete(found.rule, None)

    async def _delete(self, rule: ForwardRule, source_epoch: int | None) -> bool | Refusal:
        """Delete a route at its shard; return whether it no longer exists."""
        shard = self.graph.shard_of(rule)
        request = encode_forward(DeleteForward(rule.name, source_epoch))
        answer = await self._ask(shard, LinkKind.DELETE_FORWARD, request)
        if answer is None:
            self._learned_from[shard] = 0
            return _in_doubt(shard)
        try:
            is_over = _decode_over(self._body(shard, answer))
        except Failed as failed:
            return failed.refusal
        if is_over:
            self.graph.drop(rule.name)
        return is_over

    async def topic_gone(self, gone: TopicGone) -> list[str]:
        """Return the names of the routes that end with a deleted topic.

        The shard of the topic ended the routes into it together with the topic. The routes from it are ended
        here, each at its shard; where a shard cannot be reached, its route runner will find that the source
        is deleted.
        """
        await self._know_all()
        rules = self.graph.touching(gone.name)
        # Without the lock of the name: a PUT that holds it may wait for this call.
        ended = await asyncio.gather(*(self._end_with(rule, gone) for rule in rules))
        return [rule.name for rule, is_over in zip(rules, ended, strict=True) if is_over]

    async def _end_with(self, rule: ForwardRule, gone: TopicGone) -> bool:
        if rule.source == gone.name:
            # The shard knows which epoch of the source the route copies from.
            return await self._delete(rule, gone.epoch) is not False
        # Checked, not assumed: if the topic exists again, the route may exist too.
        told = await self.list_shard(self.graph.shard_of(rule), ForwardsAsked(name=rule.name))
        if told == []:
            self.graph.drop(rule.name)
        return told == []


def _in_doubt(shard: int) -> Refusal:
    message = f"shard {shard} ended before it answered: the change may or may not have been made"
    return Refusal(IN_DOUBT, message, {"shard": shard}, RETRY_AFTER_MS)
