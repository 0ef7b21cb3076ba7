"""What a topic may be called, and the number that stands for its name on the disk and between shards.

Why so narrow a rule: a name travels in paths, in headers, in log lines and in shell commands, and needs
quoting in none of them. The name itself never becomes a file name; its id does. Names are compared as
they are: no case folding, no normalisation, so one name has one id.

A forward (the rule that copies one topic into another) has a name of its own, in which `>` is allowed too,
so that it can be called `orders>billing`.

What it must not know: which topics exist, and where a topic lives (`shared/placement.py`).
"""

from __future__ import annotations

import re

import xxhash

from shared.errors import INVALID_REQUEST, Refusal

NAME_CHARACTERS_MAX = 255
TOPIC_NAME_RULE = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"
FORWARD_NAME_RULE = r"^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"

# Always with `fullmatch`: the `$` of a Python pattern also matches before a newline at the end.
_topic_name = re.compile(TOPIC_NAME_RULE)
_forward_name = re.compile(FORWARD_NAME_RULE)

_SHOWN_CHARACTERS_MAX = 40


def is_topic_name(name: str) -> bool:
    """
    >>> is_topic_name("orders.eu:2024"), is_topic_name(".hidden"), is_topic_name("a>b")
    (True, False, False)
    """
    return _topic_name.fullmatch(name) is not None


def is_forward_name(name: str) -> bool:
    return _forward_name.fullmatch(name) is not None


def refuse_topic_name(name: str, field: str = "topic") -> Refusal | None:
    """The refusal that tells a client what is wrong with a name, or None for a good one.

    >>> print(refuse_topic_name("a b").message)
    topic: 'a b' is no topic name, which must match ^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$
    """
    if is_topic_name(name):
        return None
    return _refusal(name, field, "topic", TOPIC_NAME_RULE)


def refuse_forward_name(name: str, field: str = "router") -> Refusal | None:
    """As `refuse_topic_name`, in the words of the API, which calls a forward a route."""
    if is_forward_name(name):
        return None
    return _refusal(name, field, "route", FORWARD_NAME_RULE)


def topic_id(name: str) -> int:
    """The id of a topic, 64 bits. Two names may meet in one id; who creates a topic has to look.

    >>> f"{topic_id('orders'):016x}"
    'a88ccdc9fa4974fb'
    """
    return xxhash.xxh3_64_intdigest(name.encode())


def _refusal(name: str, field: str, noun: str, rule: str) -> Refusal:
    # `ascii` because a refused name may hold what cannot be encoded, and a bound because it may be long.
    shown = ascii(name[:_SHOWN_CHARACTERS_MAX])
    if len(name) > _SHOWN_CHARACTERS_MAX:
        shown += f"... ({len(name)} characters)"
    return Refusal(
        INVALID_REQUEST,
        f"{field}: {shown} is no {noun} name, which must match {rule}",
        {"field": field},
    )
