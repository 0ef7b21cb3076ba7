"""Clamped values: the response member with the values used for numbers over a bound."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shared.contract.topic_config import CLAMPED_FIELDS, TopicConfig, TopicConfigPatch
from shared.text.units import duration_ms

_encode = msgspec.json.Encoder().encode


def clamped_to(**values: tuple[int | None, int]) -> dict[str, int]:
    """Return the used values of the fields where they differ from the given ones.

    >>> clamped_to(limit=(5000, 1000), wait_ms=(10, 10), lease_ms=(None, 30000))
    {'limit': 1000}
    """
    return {name: used for name, (given, used) in values.items() if given is not None and given != used}


def clamped_lease(lease_ms: int | None) -> dict[str, int]:
    low, high = CLAMPED_FIELDS["lease_ms"]
    return clamped_to(lease_ms=(lease_ms, min(max(lease_ms or 0, low), high)))


def clamped_config(patch: TopicConfigPatch, config: TopicConfig, prefix: str = "") -> dict[str, int]:
    """Return the topic's values of the fields that the patch gave differently."""
    given = {name: _number_of(name, getattr(patch, name)) for name in CLAMPED_FIELDS}
    return {
        prefix + name: getattr(config, name)
        for name, value in given.items()
        if isinstance(value, int) and value != getattr(config, name)
    }


def _number_of(name: str, given: object) -> object:
    """Return the milliseconds of a duration with a unit; return other values unchanged."""
    return duration_ms(name, given) if isinstance(given, str) else given


def member(clamped: Mapping[str, int]) -> dict[str, object]:
    """Return the response member, or nothing when no value was clamped."""
    return {"clamped": clamped} if clamped else {}


def with_member(body: bytes, clamped: Mapping[str, int]) -> bytes:
    """Add the member to a rendered object.

    >>> with_member(b'{"a":{}}', {"limit": 1000})
    b'{"a":{},"clamped":{"limit":1000}}'
    """
    if not clamped:
        return body
    end = body.rindex(b"}")
    return b'%b,"clamped":%b%b' % (body[:end], _encode(clamped), body[end:])
