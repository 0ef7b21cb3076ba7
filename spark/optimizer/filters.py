"""Limits derived from the filters of a query: which segments must be read.

Filters on a topic, an offset, a time or a tag exclude segments and records. All filters are returned to
Spark, which applies them to what was read, so the rows are right whatever is understood here. The derivation
is a pure function and can be repeated.

PySpark 4.0 has no filters for Python sources, so this module is imported only where filters are given.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from spark.optimizer.limits import NO_LIMITS, Limits
from spark.source.read_options import SEQ_MAX

TOPIC, OFFSETS, TIMES, TAGS = (
    ("topic",),
    (("offset",), ("seq",)),
    (("timestamp",), ("ts",)),
    (("key",), ("tag",)),
)


def limits_of(filters: Iterable[Filter]) -> Limits:
    """Return the limits of a query for which all of these filters hold."""
    limits = NO_LIMITS
    for one in filters:
        limits = _tighten(limits, one)
    return limits


def _tighten(limits: Limits, one: Filter) -> Limits:
    """Return the limits tightened by one filter; unchanged if the filter is not understood."""
    attribute: Any = getattr(one, "attribute", None)
    value: Any = getattr(one, "value", None)
    if attribute == TOPIC:
        return _of_topic(limits, one, value)
    if attribute in OFFSETS and isinstance(value, int):
        low, high = _range(one, value)
        return msgspec.structs.replace(limits, first=max(limits.first, low), last=min(limits.last, high))
    if attribute in TIMES and isinstance(value, datetime):
        micros = (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        low, high = _range(one, micros)
        from_ms, to_ms = max(0, -(-low // 1000)), SEQ_MAX if high == SEQ_MAX else high // 1000
        return msgspec.structs.replace(
            limits, from_ms=max(limits.from_ms, from_ms), to_ms=min(limits.to_ms, to_ms)
        )
    if attribute in TAGS and limits.tag is None and isinstance(one, EqualTo | StringStartsWith):
        tag = value.encode() if isinstance(value, str) else bytes(value) if value is not None else None
        if tag:
            return msgspec.structs.replace(limits, tag=tag, is_prefix=isinstance(one, StringStartsWith))
    return limits


def _of_topic(limits: Limits, one: Filter, value: Any) -> Limits:
    if isinstance(one, EqualTo):
        names = frozenset([value])
    elif isinstance(one, In):
        names = frozenset(value)
    else:
        return limits
    return msgspec.structs.replace(limits, topics=names if limits.topics is None else limits.topics & names)


def _range(one: Filter, value: int) -> tuple[int, int]:
    low, high = 0, SEQ_MAX
    match one:
        case EqualTo():
            return value, value
        case GreaterThan():
            return value + 1, high
        case GreaterThanOrEqual():
            return value, high
        case LessThan():
            return low, value - 1
        case LessThanOrEqual():
            return low, value
    return low, high
