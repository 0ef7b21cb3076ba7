"""Random operations on the engine, checked against a simple oracle."""

from __future__ import annotations

import pytest

from tests.model.engine_model import Episode
from topicsd.engine.read import selected_slices
from topicsd.engine.records import tag_index
from topicsd.engine.retention import delete

EPISODES, OPERATIONS = 20, 1000
DEEP_EPISODES, DEEP_OPERATIONS = 250, 4000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(EPISODES))
def test_every_answer_matches_the_oracle(seed: int) -> None:
    print("seed", seed)
    Episode(seed).run(OPERATIONS)


@pytest.mark.parametrize("seed", range(30_000, 30_004))
def test_every_answer_matches_the_oracle_when_filters_fill_whole_pages_or_keep_none(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print("seed", seed)
    monkeypatch.setattr(selected_slices, "RANGE_BYTES_MAX", 200)
    monkeypatch.setattr(selected_slices, "SPARSE_MAX", seed % 2)
    monkeypatch.setattr(selected_slices, "FEW_MAX", 3)
    Episode(seed).run(OPERATIONS // 2)


@pytest.mark.parametrize("seed", range(20_000, 20_004))
def test_every_answer_matches_the_oracle_when_deletes_are_looked_up_on_a_thread(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print("seed", seed)
    monkeypatch.setattr(delete, "FEW_RECORDS", 0)
    monkeypatch.setattr(tag_index, "TAKEN_AT_ONCE", -1)
    Episode(seed).run(OPERATIONS)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10_000, 10_000 + DEEP_EPISODES))
def test_every_answer_matches_the_oracle_over_a_million_operations(seed: int) -> None:
    print("seed", seed)
    Episode(seed).run(DEEP_OPERATIONS)
