"""The responses of the route endpoints (`/v0/routers`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from router.control.control import Answer, clamped_page_size, parse_list_query, parse_query, refused
from router.control.route_registry import ForwardControl
from router.control.topic_list import ListQuery, Page, list_page
from shared.contract.errors import ROUTER_NOT_FOUND, Refusal
from shared.contract.names import is_forward_name, refuse_forward_name, refuse_topic_name
from shared.contract.route_rule import ForwardRule, ForwardsAsked, ToldForward, TopicGone
from shared.runtime.clock import Clock

ROUTER: Final = "router"


class ForwardAnswers:
    def __init__(self, control: ForwardControl, clock: Clock) -> None:
        self._control = control
        self._clock = clock

    async def put(self, rule: ForwardRule) -> Answer:
        started = self._clock.monotonic()
        told = await self._control.put(rule)
        if isinstance(told, Refusal):
            return refused(told)
        performance = {"server_total_ms": round((self._clock.monotonic() - started) * 1000, 3)}
        answer = {ROUTER: rule.name, "created": told.created, **fields_of(told.rule)}
        return 201 if told.created else 200, {**answer, "performance": performance}, b""

    async def topic_gone(self, gone: TopicGone) -> list[str]:
        return await self._control.topic_gone(gone)

    async def answer(
        self, operation: str, name: str, query: str, prefixes: Sequence[str]
    ) -> dict[str, object] | Refusal:
        if operation == "list_routers":
            return await self._list(query, prefixes)
        refusal = refuse_forward_name(name)
        if refusal is not None:
            return refusal
        if operation == "delete_router":
            deleted = await self._control.delete(name)
            return deleted if isinstance(deleted, Refusal) else {ROUTER: name, "deleted": deleted}
        assert operation == "router_state"
        found = await self._control.find(name)
        if isinstance(found, ToldForward):
            return entry_of(found)
        return found or Refusal(ROUTER_NOT_FOUND, f'route "{name}" does not exist')

    async def _list(self, query: str, prefixes: Sequence[str]) -> dict[str, object] | Refusal:
        asked, sent = parse_list_query(query, is_forward_name), parse_query(query)
        if isinstance(asked, Refusal):
            return asked
        if isinstance(sent, Refusal):
            return sent
        ends = {field: sent.get(field, "") for field in ("source", "dest")}
        for field, name in ends.items():
            refusal = refuse_topic_name(name, field) if name else None
            if refusal is not None:
                return refusal
        page = await self.page(asked, prefixes, **ends)
        if isinstance(page, Refusal):
            return page
        answer: dict[str, object] = {"routers": page.entries}
        if page.next_cursor is not None:
            answer["next_cursor"] = page.next_cursor
        if page.missing_shards:
            answer["missing_shards"] = page.missing_shards
        return {**answer, **clamped_page_size(query, asked)}

    async def page(
        self, asked: ListQuery, prefixes: Sequence[str], source: str = "", dest: str = ""
    ) -> Page | Refusal:
        async def list_shard(shard: int, prefix: str, after: str, limit: int) -> list[dict[str, Any]] | None:
            wanted = ForwardsAsked(prefix, after, limit, source, dest)
            told = await self._control.list_shard(shard, wanted)
            return None if told is None else [entry_of(one) for one in told]

        count = self._control.shard_count
        return await list_page(list_shard, count, asked, prefixes, ROUTER, self._control.does_not_start)


def entry_of(told: ToldForward) -> dict[str, object]:
    return {ROUTER: told.rule.name, **fields_of(told.rule), "forwarded_total": told.forwarded_total}


def fields_of(rule: ForwardRule) -> dict[str, object]:
    """Return all fields of a route, as a PUT sends them."""
    return {
        "source": rule.source,
        "dest": rule.dest,
        "preserve_node": rule.keeps_node,
        "preserve_tag": rule.keeps_tag,
        "create_dest": rule.makes_dest,
        "filter": rule.tags,
        "allow_cycle": rule.may_cycle,
        "guarantee": "exactly_once" if rule.is_exactly_once else "at_least_once",
        "from": "earliest" if rule.is_from_start else "head",
    }
