"""Routes into the topics of this shard, and webhooks from them: their rules, and their positions.

A route belongs to its destination, a webhook to its source, which `RouteRule.keeper` names. Its frames follow
that topic's order in the log, and it is part of that topic's snapshot entry, so it is deleted with the topic.
A rule is configuration: it survives in every durability class. The position is logged in one batch with the
copies (`step.py`), also for a topic whose records are not durable: a record that was copied once and lost
there is not copied again.

F1  A route begins at the position of its source when the route is created, and belongs to that incarnation of
    the source. A changed route keeps its position.
F2  Nothing is copied once the end of a route is in the log, so no later frame refers to another route of that
    name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import msgspec

from shared.contract.errors import TOPIC_EXISTS_INCOMPATIBLE, Refusal
from shared.contract.route_rule import RouteRule, WebhookStatus
from topicsd.engine.pending import PendingControl, call_reply
from topicsd.engine.requests import Reply
from topicsd.engine.retention.eviction_log import evict_expired
from topicsd.engine.shard_data import ShardData
from topicsd.engine.state import ShardState
from topicsd.engine.topic import Topic
from topicsd.engine.topic_admin import missing_topic
from topicsd.log.control_frame import ForwardCreate, ForwardCursor, ForwardDelete

ROUTES_SECTION: Final = "forwards"
"""The name of the routes' section in a topic's snapshot entry."""


class SourcePosition(NamedTuple):
    """The epoch and the bounds of a source topic."""

    epoch: int
    head_seq: int
    earliest_seq: int


SourceLookup = Callable[[str, Callable[[SourcePosition | Refusal], object]], object]


class RoutePut(msgspec.Struct, frozen=True):
    """The result of `put_route`."""

    rule: RouteRule
    created: bool
    forwarded_total: int


class RouteDeleted(msgspec.Struct, frozen=True):
    """The result of `delete_route`."""

    name: str
    deleted: bool


class SnapshotRoute(msgspec.Struct, frozen=True, array_like=True):
    """One route in a snapshot."""

    rule: RouteRule
    source_epoch: int
    seq: int
    source_head: int
    forwarded_total: int


class RouteState:
    """One route and its position in the source."""

    __slots__ = (
        "forwarded_total",
        "is_ending",
        "is_gone",
        "logged_seq",
        "rule",
        "seq",
        "source_epoch",
        "source_head",
        "topic",
        "webhook",
    )

    def __init__(self, topic: Topic, saved: SnapshotRoute) -> None:
        self.topic = topic
        """The topic that the route is part of."""
        self.webhook = None if saved.rule.webhook is None else WebhookStatus()
        self.rule = saved.rule
        self.source_epoch = saved.source_epoch
        self.seq = saved.seq
        """The last seq of the source that it is done with."""
        self.logged_seq = saved.seq
        """The position that the log has."""
        self.source_head = saved.source_head
        """The head of the source when the route was created. Only up to there may an earlier route have
        copied."""
        self.forwarded_total = saved.forwarded_total
        self.is_ending = False
        """True while its delete is on its way to the log."""
        self.is_gone = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[SnapshotRoute]).decode


def put_route(
    shard: ShardState, rule: RouteRule, reply: Reply[RoutePut], find_source: SourceLookup | None = None
) -> None:
    """Create a route, or change its options; `reply` gets `RoutePut` or a `Refusal`.

    `find_source` asks another shard for the position of a source; None on a server of one shard.
    """
    retry = partial(put_route, shard, rule, reply, find_source)
    assert rule.source != rule.dest
    known = shard.routes.get(rule.name)
    if known is not None and not known.is_ending:
        source_position = SourcePosition(known.source_epoch, known.source_head, 1)
        _put(shard, rule, reply, retry, source_position)
    elif rule.source in shard.topics or find_source is None:
        _put(shard, rule, reply, retry, _local_source(shard, rule.source))
    elif shard.visible_topic(rule.keeper) is None and rule.keeper not in shard.topics:
        reply(missing_topic(shard, rule.keeper))
    else:
        find_source(rule.source, partial(_put, shard, rule, reply, retry))


def _local_source(shard: ShardState, name: str) -> SourcePosition | Refusal:
    source = shard.visible_topic(name)
    if source is None:
        return missing_topic(shard, name)
    evict_expired(shard, source, shard.clock.now_ms())
    return SourcePosition(source.epoch, source.head, source.earliest_seq)


def _put(
    shard: ShardState,
    rule: RouteRule,
    reply: Reply[RoutePut],
    retry: Callable[[], None],
    source_position: SourcePosition | Refusal,
) -> None:
    topic = shard.topics.get(rule.keeper)
    if topic is not None and topic.deferred_requests is not None:
        shard.defer(topic, retry, reply)
        return
    if topic is None or not topic.visible:
        reply(missing_topic(shard, rule.keeper))
        return
    refusal = _refuse_repoint(shard, rule) or shard.log.admit_control()
    if refusal is not None:
        reply(refusal)
        return
    if isinstance(source_position, Refusal):
        reply(source_position)
        return
    known = topic.routes.get(rule.name)
    if known is not None and known.rule == rule and not topic.waiting_count:
        reply(RoutePut(rule, created=False, forwarded_total=known.forwarded_total))
        return
    if known is not None and not known.is_ending:
        # Records already looked at are done with, even those that the new rule would have copied.
        seq = known.seq
    else:
        seq = source_position.earliest_seq - 1 if rule.is_from_start else source_position.head_seq
    control = ForwardCreate(rule, source_position.epoch, seq, source_position.head_seq)

    def publish() -> None:
        created = apply_route(shard, topic, control)
        route = topic.routes[rule.name]
        call_reply(reply, RoutePut(route.rule, created, route.forwarded_total))
        shard.report_route(route)

    shard.join_config(topic, control, PendingControl(topic, publish, reply))


def delete_route(shard: ShardState, name: str, reply: Reply[RouteDeleted]) -> None:
    """Delete a route; `reply` gets `RouteDeleted` or a `Refusal`. A missing one is no error."""
    route = shard.routes.get(name)
    if route is None:
        reply(RouteDeleted(name, deleted=False))
        return
    topic = route.topic
    if topic.deferred_requests is not None:
        shard.defer(topic, partial(delete_route, shard, name, reply), reply)
        return
    refusal = shard.log.admit_control()
    if refusal is not None:
        reply(refusal)
        return
    route.is_ending = True

    def publish() -> None:
        removed = remove_route(shard, topic, name)
        call_reply(reply, RouteDeleted(name, removed is not None))
        if removed is not None:
            shard.report_route(removed)

    def undo() -> None:
        route.is_ending = False

    shard.join_config(topic, ForwardDelete(name), PendingControl(topic, publish, reply, undo))


def _refuse_repoint(shard: ShardState, rule: RouteRule) -> Refusal | None:
    known = shard.routes.get(rule.name)
    if known is None or rule.may_replace(known.rule):
        return None
    ends = f'from "{known.rule.source}" to "{known.rule.dest}"'
    message = f'route "{rule.name}" copies {ends}; to change its topics, delete it and create it again'
    return Refusal(TOPIC_EXISTS_INCOMPATIBLE, message, {"reason": "router_repoint_forbidden"})


# -- log and snapshots -------------------------------------------------------------------------------------


def apply_route(shard: ShardData, topic: Topic, control: ForwardCreate) -> bool:
    """Apply a frame that creates or changes a route; return whether the route is new."""
    rule = control.rule
    known = topic.routes.get(rule.name)
    if known is None:
        saved = SnapshotRoute(rule, control.source_epoch, control.seq, control.source_head, 0)
        _add_route(shard, RouteState(topic, saved))
        return True
    known.rule = rule
    known.seq = known.logged_seq = max(known.seq, control.seq)
    return False


def remove_route(shard: ShardData, topic: Topic, name: str) -> RouteState | None:
    route = topic.routes.pop(name, None) if topic.routes else None
    if route is not None:
        del shard.routes[name]
        route.is_gone = True
    return route


def apply_route_cursor(topic: Topic, control: ForwardCursor) -> None:
    """Apply a frame with a route's position; a route deleted before it is ignored."""
    route = topic.routes.get(control.name)
    if route is not None:
        move_route(route, control.seq, control.count)


def move_route(route: RouteState, seq: int, count: int) -> None:
    """Note a position that is in the log, and the number of copies made on the way."""
    route.seq = route.logged_seq = max(route.seq, seq)
    route.forwarded_total += count


def _add_route(shard: ShardData, route: RouteState) -> None:
    topic, name = route.topic, route.rule.name
    topic.routes = {**topic.routes, name: route}
    shard.routes[name] = route


def route_section(topic: Topic) -> dict[str, bytes]:
    """Encode the routes of a topic for a snapshot."""
    saved = [
        SnapshotRoute(one.rule, one.source_epoch, one.seq, one.source_head, one.forwarded_total)
        for one in topic.routes.values()
    ]
    return {ROUTES_SECTION: _encode(saved)} if saved else {}


def route_names(sections: dict[str, bytes]) -> list[str]:
    """Return the names of the routes in a snapshot entry."""
    saved = _decode(sections[ROUTES_SECTION]) if ROUTES_SECTION in sections else ()
    return [one.rule.name for one in saved]


def load_routes(shard: ShardData, topic: Topic, sections: dict[str, bytes]) -> None:
    for saved in _decode(sections[ROUTES_SECTION]) if ROUTES_SECTION in sections else ():
        _add_route(shard, RouteState(topic, saved))
