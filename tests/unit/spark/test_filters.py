from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from spark.filters import NO_LIMITS, Limits, apply_filters

AT = datetime(1970, 1, 1, 0, 0, 1, 500, tzinfo=UTC)
"""1,000.5 ms."""


@pytest.mark.parametrize(
    ("one", "limits"),
    [
        (EqualTo(("topic",), "a"), Limits(topics=frozenset({"a"}))),
        (In(("topic",), ("a", "b")), Limits(topics=frozenset({"a", "b"}))),
        (EqualTo(("offset",), 5), Limits(first=5, last=5)),
        (GreaterThan(("offset",), 5), Limits(first=6)),
        (GreaterThanOrEqual(("seq",), 5), Limits(first=5)),
        (LessThan(("offset",), 5), Limits(last=4)),
        (LessThanOrEqual(("offset",), 5), Limits(last=5)),
        (IsNotNull(("offset",)), NO_LIMITS),
    ],
)
def test_topic_and_offset_are_applied_exactly(one: Filter, limits: Limits) -> None:
    assert apply_filters([one], NO_LIMITS) == (limits, [])


@pytest.mark.parametrize(
    ("one", "limits"),
    [
        (GreaterThan(("timestamp",), AT), Limits(from_ms=1001)),
        (LessThanOrEqual(("ts",), AT), Limits(to_ms=1000)),
        (EqualTo(("key",), b"red"), Limits(tag=b"red")),
        (StringStartsWith(("tag",), "re"), Limits(tag=b"re", is_prefix=True)),
    ],
)
def test_times_and_tags_narrow_and_are_handed_back(one: Filter, limits: Limits) -> None:
    assert apply_filters([one], NO_LIMITS) == (limits, [one])


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(("offset",), 5)),
        EqualTo(("value",), b"1"),
        IsNotNull(("key",)),
        In(("offset",), (1, 2)),
        GreaterThan(("topic",), "a"),
    ],
)
def test_everything_else_is_handed_back(one: Any) -> None:
    assert apply_filters([one], NO_LIMITS) == (NO_LIMITS, [one])


def test_all_of_them_hold() -> None:
    filters = [GreaterThan(("offset",), 5), LessThan(("offset",), 9), GreaterThan(("offset",), 2)]
    assert apply_filters(filters, NO_LIMITS) == (Limits(first=6, last=8), [])
    topics = [In(("topic",), ("a", "b")), In(("topic",), ("b", "c"))]
    limits, _ = apply_filters(topics, NO_LIMITS)
    assert (limits.wants_topic("b"), limits.wants_topic("a")) == (True, False)
