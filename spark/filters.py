"""What filters of a query say about which segments are to be read.

Those on topic and offset are applied exactly and are Spark's business no more. Those on a time or a tag are
used to leave segments out, and are handed back: Spark applies them to what is left. Everything else is handed
back untouched. Applying is a pure function, so that it may be done again.

A time and a tag never decide alone. Stamps never go back within a topic, so a time is a range of seqs; a tag
is looked up in what a segment knows of its tags.

Must not know: Spark's plans, how a segment is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from spark.read_options import SEQ_MAX
from spark.server_view import ServerTopic
from spark.shard_view import TopicView
from spark.stretch import Stretch

TOPIC, OFFSETS, STAMPS, TAGS = (
    ("topic",),
    (("offset",), ("seq",)),
    (("timestamp",), ("ts",)),
    (("key",), ("tag",)),
)
NEVER_NULL = (TOPIC, *OFFSETS, *STAMPS, ("partition",), ("timestampType",), ("value",), ("data",))


class Limits(msgspec.Struct, frozen=True):
    topics: frozenset[str] | None = None
    first: int = 0
    last: int = SEQ_MAX
    from_ms: int = 0
    to_ms: int = SEQ_MAX
    """The youngest that counts."""
    tag: bytes | None = None
    is_prefix: bool = False

    def wants_topic(self, name: str) -> bool:
        return self.topics is None or name in self.topics

    def seqs(self, view: TopicView | ServerTopic, first: int, last: int) -> tuple[int, int]:
        first, last = max(first, self.first), min(last, self.last)
        if self.from_ms:
            found = view.seq_at(self.from_ms)
            first = max(first, view.end if found is None else found)
        if self.to_ms < SEQ_MAX:
            beyond = view.seq_at(self.to_ms + 1)
            last = last if beyond is None else min(last, beyond - 1)
        return first, last

    def with_tags(self, view: TopicView, stretches: Iterable[Stretch]) -> Iterator[Stretch]:
        """But for those of a sealed segment that has no record with the tag."""
        for stretch in stretches:
            if self.tag is None or stretch.segment is None or not stretch.segment[1].is_sealed:
                yield stretch
                continue
            name, entry = stretch.segment
            seqs = view.loaded.segments.find_tag(name, entry, self.tag, self.is_prefix, stretch.last_seq + 1)
            if seqs and seqs[-1] >= stretch.first_seq:
                yield stretch


NO_LIMITS = Limits()


def apply_filters(filters: Iterable[Filter], limits: Limits) -> tuple[Limits, list[Filter]]:
    """The limits with the filters, all of which hold, and those that Spark has to apply itself."""
    left = []
    for one in filters:
        attribute: Any = getattr(one, "attribute", None)
        if isinstance(one, IsNotNull) and attribute in NEVER_NULL:
            continue
        tightened = _tightened(limits, one)
        if tightened is not None:
            limits = tightened
        if tightened is None or attribute not in (TOPIC, *OFFSETS):
            left.append(one)
    return limits, left


def _tightened(limits: Limits, one: Filter) -> Limits | None:
    """None for what says nothing to us."""
    attribute: Any = getattr(one, "attribute", None)
    value: Any = getattr(one, "value", None)
    if attribute == TOPIC:
        return _of_topic(limits, one, value)
    if attribute in OFFSETS and isinstance(value, int):
        low, high = _range(one, value, 1)
        return None if low is None else _between(limits, low, high)
    if attribute in STAMPS and isinstance(value, datetime):
        micros = (value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        low, high = _range(one, micros, 1)
        if low is None:
            return None
        from_ms, to_ms = max(0, -(-low // 1000)), SEQ_MAX if high == SEQ_MAX else high // 1000
        return msgspec.structs.replace(
            limits, from_ms=max(limits.from_ms, from_ms), to_ms=min(limits.to_ms, to_ms)
        )
    if attribute in TAGS and limits.tag is None and isinstance(one, EqualTo | StringStartsWith):
        tag = value.encode() if isinstance(value, str) else bytes(value) if value is not None else None
        if tag:
            return msgspec.structs.replace(limits, tag=tag, is_prefix=isinstance(one, StringStartsWith))
    return None


def _of_topic(limits: Limits, one: Filter, value: Any) -> Limits | None:
    if isinstance(one, EqualTo):
        names = frozenset([value])
    elif isinstance(one, In):
        names = frozenset(value)
    else:
        return None
    return msgspec.structs.replace(limits, topics=names if limits.topics is None else limits.topics & names)


def _between(limits: Limits, low: int, high: int) -> Limits:
    return msgspec.structs.replace(limits, first=max(limits.first, low), last=min(limits.last, high))


def _range(one: Filter, value: int, step: int) -> tuple[int | None, int]:
    low, high = 0, SEQ_MAX
    match one:
        case EqualTo():
            return value, value
        case GreaterThan():
            return value + step, high
        case GreaterThanOrEqual():
            return value, high
        case LessThan():
            return low, value - step
        case LessThanOrEqual():
            return low, value
    return None, 0
