"""The rule of a route, and the messages about it between shards and the supervisor.

A rule names a source, a destination and a filter. The log of the destination's shard stores it, or that of
the source's shard when the destination is a URL. It crosses the link to the supervisor, which knows the rules
of all shards. The API calls a route a router, and one to a URL a webhook, whose secret no
answer has.
"""

from __future__ import annotations

import msgspec


class WebhookOptions(msgspec.Struct, array_like=True, frozen=True):
    """The part of a route's rule that only a webhook has."""

    secret: str
    """The key of the signatures, as `whsec_` and base64; empty in a change that keeps the present one."""
    is_lines: bool = False
    """Whether a body is lines of JSON instead of one object."""
    batch: int = 100
    """The maximum number of records in one request."""
    timeout_ms: int = 10_000
    dead_letter: str = ""
    """The topic for batches that failed `max_attempts` times; empty when the route retries for ever."""
    max_attempts: int = 0


class WebhookStatus(msgspec.Struct, array_like=True):
    """What became of the requests of a webhook since its shard started."""

    attempts: int = 0
    """The number of failed requests for the present batch."""
    last_status: int = 0
    """The status of the last response; 0 when the last request had none."""
    last_error: str = ""
    """Why the last request failed; empty when it did not."""
    lag: int = 0
    """The number of seqs of the source that are not delivered."""
    open_until: int = 0
    """The time until which the circuit breaker sends nothing; 0 when it is closed."""


class RouteRule(msgspec.Struct, array_like=True, frozen=True):
    name: str
    source: str
    dest: str
    tags: list[str] | None = None
    """Filter: `["tag", "Eq", tag]` or `["tag", "Glob", prefix + "*"]`; None selects all."""
    keeps_node: bool = True
    keeps_tag: bool = True
    makes_dest: bool = True
    """Whether a missing destination is created."""
    is_exactly_once: bool = False
    may_cycle: bool = False
    is_from_start: bool = False
    """Whether the route begins at the earliest record at its creation, or at the next one."""
    is_in_cycle: bool = False
    """Whether another route closed a cycle through this one. Set by the supervisor only."""
    webhook: WebhookOptions | None = None
    """The options of a route whose destination is a URL."""

    @property
    def keeper(self) -> str:
        """Return the topic that the route is part of: its destination, or the source of a webhook."""
        return self.dest if self.webhook is None else self.source

    def may_replace(self, other: RouteRule) -> bool:
        """Return whether a PUT may replace the other rule: it has the same topics."""
        if self.webhook is not None and other.webhook is not None:
            return self.source == other.source
        return (self.source, self.dest) == (other.source, other.dest)

    @property
    def stamps(self) -> bool:
        """Return whether copies carry a stamp, which counts the hops of a cycle."""
        return self.is_exactly_once or self.may_cycle or self.is_in_cycle


class RouteStatus(msgspec.Struct, array_like=True, frozen=True):
    """A rule as its shard reports it to the supervisor."""

    rule: RouteRule
    forwarded_total: int
    """Number of copies that the route made."""
    created: bool = False
    webhook: WebhookStatus | None = None


class PutRoute(msgspec.Struct, array_like=True, frozen=True):
    """A request to a shard to store a rule.

    A rule of that name for another epoch of the source ends, and the new rule begins from its own start.
    """

    rule: RouteRule
    source_epoch: int


class DeleteRoute(msgspec.Struct, array_like=True, frozen=True):
    """A request to a shard to delete a rule.

    Without `source_epoch` the rule is deleted whatever epoch of the source it reads; with it, only a rule
    that reads that epoch, because that source was deleted.
    """

    name: str
    source_epoch: int | None = None


class RouteQuery(msgspec.Struct, array_like=True, frozen=True):
    """A request of the supervisor for the rules of a shard, in name order.

    An empty text or a 0 restricts nothing. With `name` the answer is that rule alone.
    """

    prefix: str = ""
    after: str = ""
    limit: int = 0
    source: str = ""
    dest: str = ""
    name: str = ""


class TopicDeletion(msgspec.Struct, array_like=True, frozen=True):
    """A deleted topic. The routes into it are deleted with it."""

    name: str
    epoch: int


encode_route_message = msgspec.msgpack.Encoder().encode
decode_route_rule = msgspec.msgpack.Decoder(RouteRule).decode
decode_route_status = msgspec.msgpack.Decoder(RouteStatus).decode
decode_route_statuses = msgspec.msgpack.Decoder(list[RouteStatus]).decode
decode_put_route = msgspec.msgpack.Decoder(PutRoute).decode
decode_delete_route = msgspec.msgpack.Decoder(DeleteRoute).decode
decode_route_query = msgspec.msgpack.Decoder(RouteQuery).decode
decode_topic_deletion = msgspec.msgpack.Decoder(TopicDeletion).decode
decode_names = msgspec.msgpack.Decoder(list[str]).decode
