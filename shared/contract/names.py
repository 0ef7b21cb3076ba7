"""Rules for the names of topics, cursors, schedules and routes, and the id of a topic name.

The rule is narrow because a name is used in paths, headers, log lines and shell commands, and must need no
quoting in any of them. A topic name never becomes a file name; the topic id does. Names are compared as they
are, without case folding or normalisation, so one name has one id.

The name of a route (the rule that copies one topic into another) may also contain `>`, as in
`orders>billing`.
"""

from __future__ import annotations

import re

import xxhash

from shared.contract.errors import Refusal, invalid
from shared.text.message import quoted

NAME_CHARACTERS_MAX = 255
TOPIC_NAME_RULE = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"
ROUTE_NAME_RULE = r"^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"

TOPIC_PATTERN_RULE = r"^[A-Za-z0-9*?][A-Za-z0-9._:*?-]{0,254}$"

# Use `fullmatch` only: the `$` of a Python pattern also matches before a final newline.
_topic_name = re.compile(TOPIC_NAME_RULE)
_route_name = re.compile(ROUTE_NAME_RULE)
_topic_pattern = re.compile(TOPIC_PATTERN_RULE)


def is_topic_name(name: str) -> bool:
    """Return whether a topic may have this name.

    >>> is_topic_name("orders.eu:2024"), is_topic_name(".hidden"), is_topic_name("a>b")
    (True, False, False)
    """
    return _topic_name.fullmatch(name) is not None


def is_topic_pattern(text: str) -> bool:
    """Return whether a text is a pattern of topic names: it has `*` for any text, or `?` for one character.

    >>> [is_topic_pattern(text) for text in ("orders.*", "t?", "orders", "a b*")]
    [True, True, False, False]
    """
    return ("*" in text or "?" in text) and _topic_pattern.fullmatch(text) is not None


def is_route_name(name: str) -> bool:
    return _route_name.fullmatch(name) is not None


def refuse_topic_name(name: str, field: str = "topic") -> Refusal | None:
    """Return the refusal of an invalid topic name, or None.

    >>> print(refuse_topic_name("a b").message)
    topic: must be a topic name, 1 to 255 of A-Z a-z 0-9 . _ : - that begins with a letter or digit, got "a b"
    """
    return None if is_topic_name(name) else _refusal(name, field, "topic", ". _ : -")


def refuse_cursor_name(name: str) -> Refusal | None:
    """Return the refusal of an invalid cursor name, or None; the rule is that of topics."""
    return None if is_topic_name(name) else _refusal(name, "cursor", "cursor", ". _ : -")


def refuse_schedule_name(name: str) -> Refusal | None:
    """Return the refusal of an invalid schedule name, or None; the rule is that of topics."""
    return None if is_topic_name(name) else _refusal(name, "schedule", "schedule", ". _ : -")


def refuse_route_name(name: str, field: str = "router") -> Refusal | None:
    """Return the refusal of an invalid route name, or None."""
    return None if is_route_name(name) else _refusal(name, field, "route", ". _ : > -")


def topic_id(name: str) -> int:
    """Return the 64-bit id of a topic. Two names may share an id; check for that on creation.

    >>> f"{topic_id('orders'):016x}"
    'a88ccdc9fa4974fb'
    """
    return xxhash.xxh3_64_intdigest(name.encode())


def _refusal(name: str, field: str, noun: str, marks: str) -> Refusal:
    rule = f"1 to {NAME_CHARACTERS_MAX} of A-Z a-z 0-9 {marks} that begins with a letter or digit"
    return invalid(field, f"must be a {noun} name, {rule}, got {quoted(name)}")
