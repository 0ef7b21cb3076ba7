"""The responses of the route endpoints (`/v0/routers`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from router.control.control import (
    ControlAnswer,
    clamped_page_size,
    parse_list_query,
    performance_since,
    refusal_answer,
)
from router.control.route_registry import RouteRegistry
from router.control.topic_list import ListPage, ListQuery, list_page
from shared.contract.errors import ROUTER_NOT_FOUND, Refusal
from shared.contract.names import is_route_name, refuse_route_name, refuse_topic_name
from shared.contract.query import query_text
from shared.contract.route_rule import RouteQuery, RouteRule, RouteStatus, TopicDeletion, WebhookStatus
from shared.http.webhook_target import is_url
from shared.runtime.clock import Clock

ROUTER: Final = "router"


class RouteAnswers:
    def __init__(self, registry: RouteRegistry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock

    async def put(self, rule: RouteRule) -> ControlAnswer:
        started = self._clock.monotonic()
        report = await self._registry.put(rule)
        if isinstance(report, Refusal):
            return refusal_answer(report)
        answer = {ROUTER: rule.name, "created": report.created, **fields_of(report.rule)}
        answer["performance"] = performance_since(started, self._clock)
        return 201 if report.created else 200, answer, b""

    async def end_routes_of_topic(self, deleted: TopicDeletion) -> list[str]:
        return await self._registry.end_routes_of_topic(deleted)

    async def answer(
        self, operation: str, name: str, query: str, prefixes: Sequence[str]
    ) -> dict[str, object] | Refusal:
        if operation == "list_routers":
            return await self._list(query, prefixes)
        refusal = refuse_route_name(name)
        if refusal is not None:
            return refusal
        if operation == "delete_router":
            deleted = await self._registry.delete(name)
            return deleted if isinstance(deleted, Refusal) else {ROUTER: name, "deleted": deleted}
        assert operation == "router_state"
        route = await self._registry.find(name)
        if isinstance(route, RouteStatus):
            return entry_of(route)
        return route or Refusal(ROUTER_NOT_FOUND, f'route "{name}" does not exist')

    async def _list(self, query: str, prefixes: Sequence[str]) -> dict[str, object] | Refusal:
        list_query = parse_list_query(query, is_route_name)
        if isinstance(list_query, Refusal):
            return list_query
        ends = {field: query_text(query, field) or "" for field in ("source", "dest")}
        for field, name in ends.items():
            is_checked = name and not (field == "dest" and is_url(name))
            refusal = refuse_topic_name(name, field) if is_checked else None
            if refusal is not None:
                return refusal
        page = await self.page(list_query, prefixes, **ends)
        if isinstance(page, Refusal):
            return page
        answer: dict[str, object] = {"routers": page.entries}
        if page.next_cursor is not None:
            answer["next_cursor"] = page.next_cursor
        if page.missing_shards:
            answer["missing_shards"] = page.missing_shards
        return {**answer, **clamped_page_size(query, list_query)}

    async def page(
        self, query: ListQuery, prefixes: Sequence[str], source: str = "", dest: str = ""
    ) -> ListPage | Refusal:
        async def list_shard(shard: int, prefix: str, after: str, limit: int) -> list[dict[str, Any]] | None:
            request = RouteQuery(prefix, after, limit, source, dest)
            reports = await self._registry.list_shard(shard, request)
            return None if reports is None else [entry_of(report) for report in reports]

        count = self._registry.shard_count
        return await list_page(
            list_shard, count, query, prefixes, ROUTER, self._registry.has_refused_to_start
        )


def entry_of(report: RouteStatus) -> dict[str, object]:
    entry = {ROUTER: report.rule.name, **fields_of(report.rule), "forwarded_total": report.forwarded_total}
    return entry if report.webhook is None else {**entry, "delivery": _delivery_of(report.webhook)}


def _delivery_of(status: WebhookStatus) -> dict[str, object]:
    return {
        "lag": status.lag,
        "attempts": status.attempts,
        "last_status": status.last_status or None,
        "last_error": status.last_error or None,
        "open_until": status.open_until or None,
    }


def fields_of(rule: RouteRule) -> dict[str, object]:
    """Return all fields of a route, as a PUT sends them, without the secret of a webhook."""
    ends = {"source": rule.source, "dest": rule.dest}
    beginning = "earliest" if rule.is_from_start else "head"
    webhook = rule.webhook
    if webhook is not None:
        return {
            **ends,
            "filter": rule.tags,
            "from": beginning,
            "format": "ndjson" if webhook.is_lines else "json",
            "batch": webhook.batch,
            "timeout_ms": webhook.timeout_ms,
            "max_attempts": webhook.max_attempts or None,
            "dead_letter": webhook.dead_letter or None,
        }
    return {
        **ends,
        "preserve_node": rule.keeps_node,
        "preserve_tag": rule.keeps_tag,
        "create_dest": rule.makes_dest,
        "filter": rule.tags,
        "allow_cycle": rule.may_cycle,
        "guarantee": "exactly_once" if rule.is_exactly_once else "at_least_once",
        "from": beginning,
    }
