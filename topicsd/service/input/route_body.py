"""The body of a PUT of a route, whose destination is a topic or the URL of a webhook."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from shared.contract.api_keys import ApiKey
from shared.contract.errors import Refusal, invalid
from shared.contract.names import refuse_route_name, refuse_topic_name
from shared.contract.route_rule import RouteRule, WebhookOptions
from shared.http.webhook_target import (
    ATTEMPTS_MAX,
    BATCH_MAX,
    TIMEOUT_MS_MAX,
    TIMEOUT_MS_MIN,
    is_url,
    refuse_url,
    secret_key,
)
from shared.text.units import duration_ms
from topicsd.service.input.bodies import Beginning, Guarantee
from topicsd.service.input.bound_names import refuse_uncovered
from topicsd.service.input.json_body import JsonBody
from topicsd.service.input.tag_match import SentMatch, parse_one_match

ATTEMPTS_DEFAULT: Final = 10
_WEBHOOK_FIELDS: Final = ("secret", "format", "batch", "timeout_ms", "max_attempts", "dead_letter")


class RouteBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: SentMatch | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"
    begin: Beginning = msgspec.field(name="from", default="head")
    secret: str | None = None
    format: Literal["json", "ndjson"] | None = None
    batch: int | None = None
    timeout_ms: int | str | None = None
    max_attempts: int | None = None
    dead_letter: str | None = None


_ROUTE: Final = JsonBody(RouteBody, '{"source":"orders","dest":"billing"}')


def decode_route_body(name: str, body: bytes, key: ApiKey | None, tag_bytes_max: int) -> RouteRule | Refusal:
    """Return the rule of a body, between topics that the key covers, or a refusal."""
    route = _ROUTE.decode(body)
    if isinstance(route, Refusal):
        return route
    tags = _tags(route.filter, tag_bytes_max)
    refusal = refuse_route_name(name) or _refuse_ends(route)
    if refusal is not None:
        return refusal
    if isinstance(tags, Refusal):
        return tags
    webhook = _webhook_options(route) if is_url(route.dest) else _refuse_webhook_fields(route)
    if isinstance(webhook, Refusal):
        return webhook
    return _refuse_key(key, route) or RouteRule(
        name=name,
        source=route.source,
        dest=route.dest,
        tags=tags,
        keeps_node=route.preserve_node,
        keeps_tag=route.preserve_tag,
        makes_dest=route.create_dest,
        is_exactly_once=route.guarantee == "exactly_once",
        may_cycle=route.allow_cycle,
        is_from_start=route.begin == "earliest",
        webhook=webhook,
    )


def topics_of(rule: RouteRule) -> dict[str, str]:
    """Return the topics that a rule names, by field."""
    if rule.webhook is None:
        return {"source": rule.source, "dest": rule.dest}
    if not rule.webhook.dead_letter:
        return {"source": rule.source}
    return {"source": rule.source, "dead_letter": rule.webhook.dead_letter}


def _refuse_ends(route: RouteBody) -> Refusal | None:
    refusal = refuse_topic_name(route.source, "source")
    if refusal is not None:
        return refusal
    if is_url(route.dest):
        return refuse_url(route.dest)
    refusal = refuse_topic_name(route.dest, "dest")
    if refusal is None and route.source == route.dest:
        return invalid("dest", f'must differ from source, got "{route.dest}" for both')
    return refusal


def _refuse_webhook_fields(route: RouteBody) -> Refusal | None:
    for field in _WEBHOOK_FIELDS:
        if getattr(route, field) is not None:
            return invalid(field, "must be sent only when dest is a URL")
    return None


def _webhook_options(route: RouteBody) -> WebhookOptions | Refusal:
    refusal = _refuse_copy_fields(route) or _refuse_number("batch", route.batch, 1, BATCH_MAX)
    if refusal is not None:
        return refusal
    timeout_ms = duration_ms("timeout_ms", 10_000 if route.timeout_ms is None else route.timeout_ms)
    if isinstance(timeout_ms, Refusal):
        return timeout_ms
    refusal = _refuse_number("timeout_ms", timeout_ms, TIMEOUT_MS_MIN, TIMEOUT_MS_MAX)
    refusal = refusal or _refuse_dead_letter(route)
    key = b"" if route.secret is None else secret_key(route.secret)
    if refusal is not None or isinstance(key, Refusal):
        return refusal or key  # type: ignore[return-value]
    return WebhookOptions(
        route.secret or "",
        route.format == "ndjson",
        100 if route.batch is None else route.batch,
        timeout_ms,
        route.dead_letter or "",
        (route.max_attempts or ATTEMPTS_DEFAULT) if route.dead_letter else 0,
    )


def _refuse_copy_fields(route: RouteBody) -> Refusal | None:
    wrong = {
        "preserve_node": not route.preserve_node,
        "preserve_tag": not route.preserve_tag,
        "create_dest": not route.create_dest,
        "allow_cycle": route.allow_cycle,
        "guarantee": route.guarantee != "at_least_once",
    }
    for field, is_wrong in wrong.items():
        if is_wrong:
            return invalid(field, "must have its default when dest is a URL")
    return None


def _refuse_number(field: str, number: int | None, lowest: int, highest: int) -> Refusal | None:
    if number is None or lowest <= number <= highest:
        return None
    return invalid(field, f"must be from {lowest} to {highest}, got {number}", highest)


def _refuse_dead_letter(route: RouteBody) -> Refusal | None:
    name = route.dead_letter
    if name is None:
        if route.max_attempts is None:
            return None
        return invalid("max_attempts", "must be sent with dead_letter; without it a route retries for ever")
    refusal = refuse_topic_name(name, "dead_letter")
    if refusal is None and name == route.source:
        return invalid("dead_letter", f'must differ from source, got "{name}" for both')
    return refusal or _refuse_number("max_attempts", route.max_attempts, 1, ATTEMPTS_MAX)


def _tags(match: SentMatch | None, bytes_max: int) -> list[str] | Refusal | None:
    if match is None:
        return None
    tag_match = parse_one_match("filter", match)
    if isinstance(tag_match, Refusal):
        return tag_match
    size = len(tag_match.tag.encode())
    if size > bytes_max:
        return invalid("filter", f"must have a tag of at most {bytes_max} bytes, got {size}", bytes_max)
    return ["tag", "Glob", tag_match.tag + "*"] if tag_match.is_prefix else ["tag", "Eq", tag_match.tag]


def _refuse_key(key: ApiKey | None, route: RouteBody) -> Refusal | None:
    names = {"source": route.source, "dest": route.dest, "dead_letter": route.dead_letter}
    if is_url(route.dest):
        del names["dest"]
    for field, name in names.items():
        if key is not None and name is not None and not key.allows_name(name):
            return refuse_uncovered(field, name)
    return None
