"""The body of a request for a forward: every bound of it, and the names that its key is for.

Must not know: which rules and topics there are.
"""

from __future__ import annotations

from typing import Final

import msgspec

from shared.auth import Key
from shared.errors import INVALID_REQUEST, Refusal
from shared.forward_rule import ForwardRule
from shared.names import refuse_forward_name, refuse_topic_name
from topicsd.http.bodies import Beginning, Guarantee, refuse_nul_in
from topicsd.http.bound_names import other_name
from topicsd.http.json_body import JsonBody
from topicsd.http.tag_match import parse_match


class ForwardBody(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: str | list[str] | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"
    begin: Beginning = msgspec.field(name="from", default="head")


_FORWARD: Final = JsonBody(ForwardBody, '{"source":"orders","dest":"billing"}')


def decode_forward(name: str, body: bytes, key: Key | None, tag_bytes_max: int) -> ForwardRule | Refusal:
    """The rule that a body asks for, between topics that the key is for."""
    asked = _FORWARD.decode(body)
    if isinstance(asked, Refusal):
        return asked
    tags = _tags(asked.filter, tag_bytes_max)
    refusal = refuse_forward_name(name) or _refuse_ends(asked)
    if refusal is not None:
        return refusal
    if isinstance(tags, Refusal):
        return tags
    return _refuse_key(key, asked) or ForwardRule(
        name=name,
        source=asked.source,
        dest=asked.dest,
        tags=tags,
        keeps_node=asked.preserve_node,
        keeps_tag=asked.preserve_tag,
        makes_dest=asked.create_dest,
        is_exactly_once=asked.guarantee == "exactly_once",
        may_cycle=asked.allow_cycle,
        is_from_start=asked.begin == "earliest",
    )


def _refuse_ends(asked: ForwardBody) -> Refusal | None:
    refusal = refuse_topic_name(asked.source, "source") or refuse_topic_name(asked.dest, "dest")
    if refusal is None and asked.source == asked.dest:
        message = f'dest: must be another topic than the source "{asked.dest}"'
        return Refusal(INVALID_REQUEST, message, {"field": "dest"})
    return refusal


def _tags(match: str | list[str] | None, bytes_max: int) -> list[str] | Refusal | None:
    if match is None:
        return None
    found = parse_match("filter", match)
    if isinstance(found, Refusal):
        return found
    refusal = refuse_nul_in("filter", [found.tag])
    if refusal is not None:
        return refusal
    size = len(found.tag.encode())
    if size > bytes_max:
        message = f"filter: must have a tag of at most {bytes_max} bytes, got {size}"
        return Refusal(INVALID_REQUEST, message, {"field": "filter", "max": bytes_max})
    return ["tag", "Glob", found.tag + "*"] if found.is_prefix else ["tag", "Eq", found.tag]


def _refuse_key(key: Key | None, asked: ForwardBody) -> Refusal | None:
    for field, name in (("source", asked.source), ("dest", asked.dest)):
        if key is not None and not key.allows_name(name):
            return other_name(field, name)
    return None
