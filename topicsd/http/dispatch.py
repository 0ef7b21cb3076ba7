"""From a request that was read to whoever answers it: a handler here, the topic's owner, the front process.

Both lanes and the link hand their calls in here, so an answer never depends on the way that a request took.

Must not know: sockets, lanes, how a link works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shared.auth import Key, Keys
from shared.errors import IN_DOUBT, NOT_IMPLEMENTED, NOT_READY, Refusal
from shared.forwarded import Forwarded, decode_answer, decode_forwarded, encode_answer, encode_forwarded
from shared.http_head import Fields
from shared.link import FRONT, NEVER_SENT, LinkKind, LinkPool
from shared.names import topic_id
from shared.placement import shard_of
from shared.routes import Match
from topicsd.http.call import Call
from topicsd.http.handlers import Handlers

NO_FIELDS = Fields(None, None, False, "", "", "", "", None, "", "", frozenset(), "", "")


class Dispatch:
    def __init__(self, handlers: Handlers, keys: Keys, links: LinkPool, shard: int, shard_count: int) -> None:
        self.handlers = handlers
        self._keys = keys
        self._links = links
        self._shard = shard
        self._shard_count = shard_count
        self.forwarded_count = 0
        self.drains = False

    def owner_of(self, match: Match) -> int | None:
        """The shard that a request is for; None is the front process."""
        return shard_of(topic_id(match.name), self._shard_count) if match.route.is_data else None

    def start(self, match: Match | Refusal, owner: int | None, call: Call) -> None:
        """Have the call answered, once."""
        if isinstance(match, Refusal):
            call.refuse(match)
            return
        route = match.route
        call.name = match.name
        try:
            if self._keys:
                refusal = self.refuse_key(match, call.fields)
                if refusal is not None:
                    call.refuse(refusal)
                    return
            if not route.is_built:
                call.refuse(Refusal(NOT_IMPLEMENTED, f"{route.method} {route.pattern} is not built yet"))
            elif owner == self._shard:
                self.handlers.start(route.operation, call)
            else:
                self._forward(route.operation, FRONT if owner is None else str(owner), call)
        except Exception as error:
            call.fail(route.operation, error)

    def answer_link(self, payload: bytes, reply: Callable[[bytes], None]) -> None:
        """A request that another process took for a topic of this shard."""
        asked = decode_forwarded(payload)
        fields = NO_FIELDS._replace(
            content_type=asked.content_type, accept=asked.accept, idempotency_key=asked.idempotency_key
        )
        call = LinkCall(asked.name, asked.query, fields, asked.body, self.handlers.monotonic(), reply)
        try:
            self.handlers.start(asked.operation, call)
        except Exception as error:
            call.fail(asked.operation, error)

    def refuse_key(self, match: Match, fields: Fields) -> Refusal | None:
        """Why the key that was sent, or none, does not do for this."""
        if match.route.is_open:
            return None
        found = self._keys.check(fields.authorization, match.route.scopes, match.name)
        return found if isinstance(found, Refusal) else None

    def _forward(self, operation: str, peer: str, call: Call) -> None:
        self.forwarded_count += 1
        fields = call.fields
        key = self._keys.check(fields.authorization, frozenset(), call.name)
        asked = Forwarded(
            operation,
            call.name,
            call.query,
            fields.content_type,
            fields.accept,
            fields.idempotency_key,
            call.body,
            key.prefixes if isinstance(key, Key) else (),
        )

        def answered(answer: bytes | None) -> None:
            if not answer:
                call.refuse(_lost(operation, peer, was_sent=answer != NEVER_SENT))
                return
            status, fields, body = decode_answer(answer)
            call.send_parts([body], len(body), status, fields)

        self._links.call(peer, LinkKind.REQUEST, encode_forwarded(asked), answered)


class LinkCall(Call):
    """A call that another process asked for over the link."""

    __slots__ = ("_reply",)

    def __init__(
        self,
        name: str,
        query: str,
        fields: Fields,
        body: bytes,
        started: float,
        reply: Callable[[bytes], None],
    ) -> None:
        super().__init__(name, query, fields, body, started)
        self._reply = reply

    def send_parts(
        self, parts: Sequence[bytes | memoryview], length: int, status: int = 200, fields: bytes = b""
    ) -> None:
        self._reply(encode_answer(status, fields, parts))


def _lost(operation: str, peer: str, was_sent: bool) -> Refusal:
    """The peer is gone. What it never got, or only looks, can be asked again; of an append nobody knows."""
    if operation == "append" and was_sent:
        message = "the shard went away before it answered; ask again with the same idempotency key"
        return Refusal(IN_DOUBT, message, retry_after_ms=1000)
    return Refusal(NOT_READY, f"shard {peer} is restarting", retry_after_ms=1000)
