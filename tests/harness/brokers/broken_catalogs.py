"""Rules that a SQLite catalog breaks, one each: what the judgement of a history has to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from msgspec.structs import replace

from tests.harness.brokers.broken_brokers import Patch
from topicsd.catalog.shared import shared_tables, sqlite_shared
from topicsd.catalog.shared.part_changes import SliceChange, TopicFacts, decide_slice
from topicsd.catalog.shared.shared_catalog import Claim, SharedTopic, Slice, TrimReason


def _decide_with(**facts: Any) -> Callable[..., SliceChange]:
    """Return a decision that knows something else about every topic."""

    def decide(one: Slice, state: TopicFacts | None, is_condemned: bool) -> SliceChange:
        return decide_slice(one, None if state is None else state._replace(**facts), is_condemned)

    return decide


def commits_to_a_fenced_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_shared, "decide_slice", _decide_with(log_state="OPEN"))


def forgets_append_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_shared, "decide_slice", _decide_with(known={}))


def forgets_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_shared, "decide_slice", _decide_with(producers={}))


def commits_to_the_next_topic_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(one: Slice, state: TopicFacts | None, is_condemned: bool) -> SliceChange:
        present = one if state is None else replace(one, incarnation=state.incarnation)
        return decide_slice(present, state, is_condemned)

    monkeypatch.setattr(sqlite_shared, "decide_slice", decide)


def commits_condemned_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sqlite_shared, "decide_slice", lambda one, state, is_condemned: decide_slice(one, state, False)
    )


def compacts_without_claims_and_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two compactors replace the same extents, each as it found them."""
    grants_every_claim(monkeypatch)
    monkeypatch.setattr(sqlite_shared, "check_compaction", lambda *facts: None)


def trims_past_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    def trimmed(topic: SharedTopic, to_seq: int, reason: TrimReason) -> tuple[int, int]:
        return shared_tables.trimmed(replace(topic, head=1 << 60), to_seq, reason)

    monkeypatch.setattr(sqlite_shared, "tables", _Changed(shared_tables, trimmed=trimmed))


def grants_every_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broken rule: claims only save work, and overlapping compactions are refused (M1)."""

    def claimed(holder: Claim | None, topic: str, compactor: str, lease_ms: int, now_ms: int) -> Claim:
        return Claim(topic, compactor, now_ms, lease_ms)

    changed = _Changed(shared_tables, claimed=claimed, is_claimed=lambda *claim: True)
    monkeypatch.setattr(sqlite_shared, "tables", changed)


class _Changed:
    """A module with some other functions."""

    def __init__(self, module: Any, **functions: Callable[..., Any]) -> None:
        self.__dict__.update(vars(module), **functions)


BROKEN_CATALOGS: Final[tuple[Patch, ...]] = (
    commits_to_a_fenced_topic,
    forgets_append_ids,
    forgets_producers,
    commits_to_the_next_topic_of_a_name,
    commits_condemned_blobs,
    compacts_without_claims_and_checks,
    trims_past_the_head,
)
