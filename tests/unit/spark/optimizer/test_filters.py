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

from spark.optimizer.filters import limits_of
from spark.optimizer.limits import NO_LIMITS, Limits

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
        (GreaterThan(("timestamp",), AT), Limits(from_ms=1001)),
        (LessThanOrEqual(("ts",), AT), Limits(to_ms=1000)),
        (EqualTo(("key",), b"red"), Limits(tag=b"red")),
        (StringStartsWith(("tag",), "re"), Limits(tag=b"re", is_prefix=True)),
    ],
)
def test_topics_offsets_times_and_tags_narrow_what_is_read(one: Filter, limits: Limits) -> None:
    assert limits_of([one]) == limits


@pytest.mark.parametrize(
    "one",
    [
        Not(EqualTo(("offset",), 5)),
        EqualTo(("value",), b"1"),
        IsNotNull(("key",)),
        IsNotNull(("offset",)),
        In(("offset",), (1, 2)),
        GreaterThan(("topic",), "a"),
    ],
)
def test_everything_else_narrows_nothing(one: Any) -> None:
    assert limits_of([one]) == NO_LIMITS


def test_all_of_them_hold() -> None:
    filters = [GreaterThan(("offset",), 5), LessThan(("offset",), 9), GreaterThan(("offset",), 2)]
    assert limits_of(filters) == Limits(first=6, last=8)
    topics = [In(("topic",), ("a", "b")), In(("topic",), ("b", "c"))]
    limits = limits_of(topics)
    assert (limits.includes_topic("b"), limits.includes_topic("a")) == (True, False)
