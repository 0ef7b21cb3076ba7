"""The rules of forwards over all shards: made, changed, shown, listed and ended by the front process.

A rule is kept by the shard of its destination; the front process knows them all (`forward_graph.py`), and is
one process, so it decides what excludes what. It asks each shard for its rules before it decides the first
time, and again when another worker is there; those of a shard that is down are what they were. As a rule
also ends without it, with its source, none is refused for another one before the shards were asked again.

The steps of a PUT, one at a time for each name:

P1  The checks; what they refuse leaves no trace. The rule is reserved from here on.
P2  The source is made by its shard if it is absent, then the destination, if that is wanted: as by a PUT of
    the topic. What was made for a rule that is then refused is deleted again, if it is still empty.
P3  The shard of the destination keeps the rule. It comes last, so that there never is one without both of
    its ends. A crash between any two steps leaves empty topics at worst, and the PUT can be sent again.
P4  What of the circle that it closes does not count hops yet is told that it is part of one, each under its
    own turn; when one of them cannot be, that is the answer, and the PUT can be sent again.
P5  When it is not known whether the shard keeps it, the answer is 504, and what the shard has is asked for
    before anything else is decided.
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
"""Of a shard; None when it went away and may have done it, `NEVER_SENT` when it was not reached."""

_decode_json = msgspec.json.Decoder(dict[str, Any]).decode
_decode_over = msgspec.msgpack.Decoder(bool).decode


class Shards(Protocol):
    """The workers, as `router/accept/worker_channels.py` has them."""

    def __len__(self) -> int: ...
    def refusal(self, shard: int) -> Refusal | None: ...


class Failed(Exception):
    """Ends a PUT behind its checks."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal


class ForwardControl:
    def __init__(self, shards: Shards, board: Board, ask: Ask, bound: int) -> None:
        self._shards = shards
        self._board = board
        self._ask_any = ask
        self.graph = ForwardGraph(len(shards), bound)
        self._learned_from = [0] * len(shards)
        """The worker whose rules are known, by its process."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def shard_count(self) -> int:
        return len(self._shards)

    def does_not_start(self, shard: int) -> bool:
        return self._board.slot(shard).state is WorkerState.REFUSED

    async def _ask(self, shard: int, kind: LinkKind, payload: bytes) -> bytes | None:
        """Without waiting for a shard of which it is known that it does not answer."""
        if self._shards.refusal(shard) is not None:
            return NEVER_SENT
        return await self._ask_any(shard, kind, payload)

    # -- to know them --------------------------------------------------------------------------------------

    async def list_shard(self, shard: int, asked: ForwardsAsked) -> list[ToldForward] | None:
        """Rules of a shard in name order; None when it does not answer."""
        answer = await self._ask(shard, LinkKind.LIST_FORWARDS, encode_forward(asked))
        return decode_told_forwards(answer) if answer else None

    async def _learn(self, shard: int) -> Refusal | None:
        """Ask the shard for all its rules."""
        pid = self._board.slot(shard).pid
        told = await self.list_shard(shard, ForwardsAsked())
        if told is None:
            return self._not_reached(shard)
        self.graph.learn(shard, [one.rule for one in told])
        self._learned_from[shard] = pid
        return None

    async def _know_all(self) -> Refusal | None:
        """Why it is not known which rules there are."""
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
        """What is done with one name is done one after the other."""
        return self._turns.setdefault(name, asyncio.Lock())

    # -- to make one ---------------------------------------------------------------------------------------

    async def put(self, rule: ForwardRule) -> ToldForward | Refusal:
        told = await self._put(rule)
        if isinstance(told, Refusal):
            return told
        return await self._tell_around(told.rule) or told

    async def _tell_around(self, rule: ForwardRule) -> Refusal | None:
        for other in self.graph.around(rule):
            if other.stamps:
                continue
            # As it is there by now: one that is put anew meanwhile finds the circle itself.
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
        """It may be kept, or not: nothing is decided before its shard has said so."""
        self.graph.keep(rule)
        self._learned_from[self.graph.shard_of(rule)] = 0

    async def _unmake(self, topics: Sequence[str]) -> None:
        for name in topics:
            if not self.graph.touching(name):
                with contextlib.suppress(Failed):
                    await self._request("delete_topic", name, "if_empty=true")

    async def _make(self, rule: ForwardRule, made: list[str]) -> ToldForward | Refusal:
        """Raises `Failed` when nobody keeps it; a refusal says that somebody may. `made` gets the topics."""
        source, dest = await self._state(rule.source), await self._state(rule.dest)
        if dest is None and not rule.makes_dest:
            raise Failed(Refusal(TOPIC_NOT_FOUND, f'dest: topic "{rule.dest}" does not exist'))
        for name, state in ((rule.source, source), (rule.dest, dest)):
            if state is None and (await self._request("put_topic", name))["created"]:
                made.append(name)
        source = source or await self._state(rule.source)
        # One that somebody deletes just now is missed by the shard that is to keep the rule.
        source_epoch = 0 if source is None else source["epoch"]
        shard = self.graph.shard_of(rule)
        answer = await self._ask(shard, LinkKind.PUT_FORWARD, encode_forward(PutForward(rule, source_epoch)))
        if answer is None:
            return _in_doubt(shard)
        return decode_told_forward(self._body(shard, answer))

    async def _state(self, name: str) -> dict[str, Any] | None:
        """How a topic is; None when there is none."""
        try:
            return await self._request("topic_state", name, "touch=false")
        except Failed as failed:
            if failed.refusal.code == TOPIC_NOT_FOUND:
                return None
            raise

    async def _request(self, operation: str, name: str, query: str = "") -> dict[str, Any]:
        """As from a client, of the shard of the topic."""
        shard = shard_of(topic_id(name), len(self._shards))
        request = Forwarded(operation, name, query, "application/json", "", "", b"")
        answer = await self._ask(shard, LinkKind.REQUEST, encode_forwarded(request))
        return _decode_json(self._body(shard, answer))

    def _body(self, shard: int, answer: bytes | None) -> bytes:
        """Of an answer that is no refusal."""
        if not answer:
            raise Failed(self._not_reached(shard))
        status, _, body = decode_answer(answer)
        if status >= 400:
            raise Failed(refusal_in(body))
        return body

    def _not_reached(self, shard: int) -> Refusal:
        message = f"shard {shard} does not answer"
        return self._shards.refusal(shard) or Refusal(NOT_READY, message, {"shard": shard}, RETRY_AFTER_MS)

    # -- to end them ---------------------------------------------------------------------------------------

    async def find(self, name: str) -> ToldForward | Refusal | None:
        """As its shard tells it; None when there is none, a refusal when its shard may be down."""
        asked = ForwardsAsked(name=name)
        shards = range(len(self._shards))
        lists = await asyncio.gather(*(self.list_shard(shard, asked) for shard in shards))
        found = [one for told in lists if told for one in told]
        if found:
            return found[0]
        down = [shard for shard, told in zip(shards, lists, strict=True) if told is None]
        return self._not_reached(down[0]) if down else None

    async def delete(self, name: str) -> bool | Refusal:
        """Whether there was one."""
        async with self._turn(name):
            found = await self.find(name)
            if found is None or isinstance(found, Refusal):
                return found or False
            return await self._delete(found.rule, None)

    async def _delete(self, rule: ForwardRule, source_epoch: int | None) -> bool | Refusal:
        """Whether it is there no longer."""
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
        """A topic was deleted: the names of the rules that end with it.

        Its shard ended those into it with it. Those from it are ended here, each on its shard; where that
        cannot be reached, the forward itself will find that its source is gone.
        """
        await self._know_all()
        rules = self.graph.touching(gone.name)
        # Without a turn: a PUT that has it may wait for this.
        ended = await asyncio.gather(*(self._end_with(rule, gone) for rule in rules))
        return [rule.name for rule, is_over in zip(rules, ended, strict=True) if is_over]

    async def _end_with(self, rule: ForwardRule, gone: TopicGone) -> bool:
        if rule.source == gone.name:
            # The shard knows which incarnation of the source the rule leads from.
            return await self._delete(rule, gone.epoch) is not False
        # Not taken for granted: if the topic is there again, the rule may be.
        told = await self.list_shard(self.graph.shard_of(rule), ForwardsAsked(name=rule.name))
        if told == []:
            self.graph.drop(rule.name)
        return told == []


def _in_doubt(shard: int) -> Refusal:
    message = f"shard {shard} ended before it answered: the change may or may not have been made"
    return Refusal(IN_DOUBT, message, {"shard": shard}, RETRY_AFTER_MS)
