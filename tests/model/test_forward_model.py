"""Whatever happens to shards, topics and rules: a destination has what its rule says, once, in order."""

from __future__ import annotations

import pytest

from tests.harness.forward_model import ForwardModel


@pytest.mark.parametrize("seed", range(30))
def test_destinations_have_what_the_oracle_says(seed: int) -> None:
    print("seed", seed)
    ForwardModel(seed).run(100)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10_000, 10_300))
def test_destinations_have_what_the_oracle_says_for_longer(seed: int) -> None:
    print("seed", seed)
    ForwardModel(seed).run(400)


@pytest.mark.parametrize("seed", range(30))
def test_what_topics_trim_is_told_where_it_is_missing(seed: int) -> None:
    print("seed", seed)
    ForwardModel(seed, trims=True).run(100)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10_000, 10_300))
def test_what_topics_trim_is_told_where_it_is_missing_for_longer(seed: int) -> None:
    print("seed", seed)
    ForwardModel(seed, trims=True).run(400)
