"""Routes in a worker: requests to put one, and the rules of those into this shard's topics.

The supervisor, which knows the rules of all shards, decides in between: it receives the decoded rule from any
worker and sends it to the shard of the destination, whose answer passes through. Deleting a topic deletes the
routes into it in the same batch. The supervisor is notified, and has the routes from it deleted on their
shards. If that fails, the route runner itself finds that its source is gone or has another epoch, and ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import msgspec

from shared.contract.api_keys import ApiKey
from shared.contract.errors import Refusal, in_doubt, invalid, no_answer, not_supported
from shared.contract.route_rule import (
    DeleteRoute,
    RouteQuery,
    RouteRule,
    RouteStatus,
    TopicDeletion,
    decode_delete_route,
    decode_names,
    decode_put_route,
    decode_route_query,
    encode_route_message,
)
from shared.ipc.link import NEVER_SENT, SUPERVISOR, LinkPool, LinkReply
from shared.ipc.link_kind import LinkKind
from shared.ipc.remote_request import decode_answer, encode_answer
from shared.settings.settings import Settings
from topicsd.engine.routes.route import (
    RouteDeleted,
    RoutePut,
    RouteState,
    SourceLookup,
    delete_route,
    put_route,
)
from topicsd.engine.state import ShardState
from topicsd.service.call import Call
from topicsd.service.handlers import FindShared
from topicsd.service.input.bodies import refuse_media_type
from topicsd.service.input.route_body import decode_route_body, topics_of
from topicsd.service.render import render_refusal

ROUTE_REQUESTS: Final = frozenset({LinkKind.PUT_ROUTE, LinkKind.DELETE_ROUTE, LinkKind.LIST_ROUTES})
"""Requests of the supervisor to a worker."""


class RouteRules:
    def __init__(
        self,
        state: ShardState,
        settings: Settings,
        links: LinkPool,
        locate_source: SourceLookup,
        has_supervisor: bool,
        find_shared: FindShared | None = None,
    ) -> None:
        """`find_shared` reports whether a shared topic has a name, on a node with brokers."""
        self._state = state
        self._settings = settings
        self._links = links
        self._locate_source = locate_source
        self._has_supervisor = has_supervisor
        self._find_shared = find_shared

    # -- as a request --------------------------------------------------------------------------------------

    def put(self, call: Call, key: ApiKey | None) -> None:
        refusal = refuse_media_type(call.fields, call.body)
        rule = refusal or decode_route_body(call.name, call.body, key, self._settings.max_tag_bytes)
        if isinstance(rule, Refusal):
            call.refuse(rule)
            return
        topics = topics_of(rule)
        unknown = {field: name for field, name in topics.items() if name not in self._state.topics}
        if self._find_shared is None or not unknown:
            self._send(call, rule)
        else:
            self._refuse_shared(call, rule, unknown)

    def _refuse_shared(self, call: Call, rule: RouteRule, unknown: dict[str, str]) -> None:
        """Send the rule unless one of its topics is a shared one, which has no routes."""
        assert self._find_shared is not None
        field = next(iter(unknown))

        def on_answer(is_shared: bool | Refusal) -> None:
            left = {other: name for other, name in unknown.items() if other != field}
            if isinstance(is_shared, Refusal):
                call.refuse(is_shared)
            elif is_shared:
                call.refuse(not_supported("routes", field))
            elif left:
                self._refuse_shared(call, rule, left)
            else:
                self._send(call, rule)

        self._find_shared(unknown[field], on_answer)

    def _send(self, call: Call, rule: RouteRule) -> None:
        on_answer = partial(self._on_answer, call)
        self._links.call(SUPERVISOR, LinkKind.PUT_ROUTE, encode_route_message(rule), on_answer)

    def _on_answer(self, call: Call, answer: bytes | None) -> None:
        if answer:
            status, fields, body = decode_answer(answer)
            call.send_parts([body], len(body), status, fields)
        elif answer == NEVER_SENT:
            call.refuse(no_answer(None))
        else:
            call.refuse(in_doubt(None, "; retry the request"))

    def on_topic_deleted(self, name: str, epoch: int, reply: Callable[[list[str]], object]) -> None:
        """Report a deleted topic to the supervisor; pass the names of its known routes to `reply`."""
        if not self._has_supervisor:
            reply([])
            return

        def on_answer(answer: bytes | None) -> None:
            reply(decode_names(answer) if answer else [])

        self._links.call(
            SUPERVISOR, LinkKind.TOPIC_DELETED, encode_route_message(TopicDeletion(name, epoch)), on_answer
        )

    # -- requests of the supervisor ------------------------------------------------------------------------

    def answer_link(self, kind: int, payload: bytes, reply: LinkReply) -> None:
        if kind == LinkKind.LIST_ROUTES:
            reply(encode_route_message(list(self._list(decode_route_query(payload)))))
        elif kind == LinkKind.DELETE_ROUTE:
            self._delete(decode_delete_route(payload), reply)
        else:
            assert kind == LinkKind.PUT_ROUTE
            self._put(payload, reply)

    def _put(self, payload: bytes, reply: LinkReply) -> None:
        rule, source_epoch = msgspec.structs.astuple(decode_put_route(payload))

        def respond(answer: RoutePut | Refusal) -> None:
            if isinstance(answer, Refusal):
                _refuse(reply, answer)
                return
            route = RouteStatus(answer.rule, answer.forwarded_total, answer.created)
            reply(encode_answer(201 if answer.created else 200, b"", [encode_route_message(route)]))

        def put(answer: RouteDeleted | Refusal | None) -> None:
            if isinstance(answer, Refusal):
                _refuse(reply, answer)
            else:
                put_route(self._state, rule, respond, self._locate_source)

        existing = self._state.routes.get(rule.name)
        if rule.webhook is not None and not rule.webhook.secret:
            kept = (
                None if existing is None or existing.source_epoch != source_epoch else existing.rule.webhook
            )
            if kept is None:
                _refuse(reply, invalid("secret", "is required for a new route to a URL"))
                return
            webhook = msgspec.structs.replace(rule.webhook, secret=kept.secret)
            rule = msgspec.structs.replace(rule, webhook=webhook)
        if existing is None:
            put(None)
        elif existing.source_epoch == source_epoch:
            # An update keeps where the existing route began.
            rule = msgspec.structs.replace(rule, is_from_start=existing.rule.is_from_start)
            put(None)
        else:
            delete_route(self._state, rule.name, put)

    def _delete(self, request: DeleteRoute, reply: LinkReply) -> None:
        def respond(answer: RouteDeleted | Refusal) -> None:
            if isinstance(answer, Refusal):
                _refuse(reply, answer)
            else:
                reply(encode_answer(200, b"", [encode_route_message(True)]))

        existing = self._state.routes.get(request.name)
        if existing is not None and request.source_epoch not in (None, existing.source_epoch):
            reply(encode_answer(200, b"", [encode_route_message(False)]))
        else:
            delete_route(self._state, request.name, respond)

    def _list(self, request: RouteQuery) -> Iterator[RouteStatus]:
        routes = self._state.routes
        candidates = routes.keys() & {request.name} if request.name else routes
        names = sorted(
            name for name in candidates if name > request.after and _is_selected(routes[name], request)
        )
        for name in names[: request.limit or None]:
            route = routes[name]
            if route.webhook is not None:
                route.webhook.lag = max(0, route.topic.head - route.seq)
            yield RouteStatus(route.rule, route.forwarded_total, webhook=route.webhook)


def _is_selected(route: RouteState, request: RouteQuery) -> bool:
    rule = route.rule
    return (
        rule.name.startswith(request.prefix)
        and request.source in ("", rule.source)
        and request.dest in ("", rule.dest)
    )


def _refuse(reply: LinkReply, refusal: Refusal) -> None:
    status, body, fields = render_refusal(refusal)
    reply(encode_answer(status, fields, [body]))
