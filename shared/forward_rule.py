"""The rule of a forward: what is copied from which topic into which, as it is kept in the log of the
destination's shard and crosses the link to the front process, which knows the rules of all shards.

The API calls a forward a router.

Must not know: how it is asked for, how far it has come.
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
