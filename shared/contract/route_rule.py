"""The rule of a forward: what is copied from which topic into which, as it is kept in the log of the
destination's shard and crosses the link to the front process, which knows the rules of all shards.

The API calls a forward a router.
"""

from __future__ import annotations

import msgspec


class ForwardRule(msgspec.Struct, array_like=True, frozen=True):
    name: str
    source: str
    dest: str
    tags: list[str] | None = None
    """`["tag", "Eq", tag]` or `["tag", "Glob", prefix + "*"]`; None takes every record."""
    keeps_node: bool = True
    keeps_tag: bool = True
    makes_dest: bool = True
    """The destination is created when it is not there."""
    is_exactly_once: bool = False
    may_cycle: bool = False
    is_from_start: bool = False
    """From the oldest record that is there when the rule is made; otherwise from the next one."""
    is_in_cycle: bool = False
    """It is part of a circle that another one has closed; the front process says so, and no client."""

    @property
    def stamps(self) -> bool:
        """Its copies have a stamp, so that on a way around each hop is counted."""
        return self.is_exactly_once or self.may_cycle or self.is_in_cycle


class ToldForward(msgspec.Struct, array_like=True, frozen=True):
    """A rule as its shard tells the front process of it."""

    rule: ForwardRule
    forwarded_total: int
    """Copies that were made by it."""
    created: bool = False


class PutForward(msgspec.Struct, array_like=True, frozen=True):
    """A shard is to keep the rule. What it has of that name from another incarnation of the source is over,
    and this one begins anew."""

    rule: ForwardRule
    source_epoch: int


class DeleteForward(msgspec.Struct, array_like=True, frozen=True):
    """A shard is to keep the rule no longer, whatever incarnation of its source it leads from; or only if it
    is that one, of a source that is gone."""

    name: str
    source_epoch: int | None = None


class ForwardsAsked(msgspec.Struct, array_like=True, frozen=True):
    """Which rules of a shard the front process wants to hear of, in name order; what is empty or 0 bounds
    nothing. With a name it is that one."""

    prefix: str = ""
    after: str = ""
    limit: int = 0
    source: str = ""
    dest: str = ""
    name: str = ""


class TopicGone(msgspec.Struct, array_like=True, frozen=True):
    """A topic was deleted, and with it the rules into it."""

    name: str
    epoch: int


encode_forward = msgspec.msgpack.Encoder().encode
decode_forward_rule = msgspec.msgpack.Decoder(ForwardRule).decode
decode_told_forward = msgspec.msgpack.Decoder(ToldForward).decode
decode_told_forwards = msgspec.msgpack.Decoder(list[ToldForward]).decode
decode_put_forward = msgspec.msgpack.Decoder(PutForward).decode
decode_delete_forward = msgspec.msgpack.Decoder(DeleteForward).decode
decode_forwards_asked = msgspec.msgpack.Decoder(ForwardsAsked).decode
decode_topic_gone = msgspec.msgpack.Decoder(TopicGone).decode
decode_names = msgspec.msgpack.Decoder(list[str]).decode
