"""A destination has each record of its route once and in order, whatever happens around it."""

from __future__ import annotations

import pytest

from tests.model.route_model import RouteModel


@pytest.mark.parametrize("seed", range(30))
def test_destinations_match_the_oracle(seed: int) -> None:
    print("seed", seed)
    RouteModel(seed).run(100)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10_000, 10_300))
def test_destinations_match_the_oracle_in_long_runs(seed: int) -> None:
    print("seed", seed)
    RouteModel(seed).run(400)


@pytest.mark.parametrize("seed", range(30))
def test_evicted_records_are_reported_to_readers_of_destinations(seed: int) -> None:
    print("seed", seed)
    RouteModel(seed, trims=True).run(100)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10_000, 10_300))
def test_evicted_records_are_reported_to_readers_of_destinations_in_long_runs(seed: int) -> None:
    print("seed", seed)
    RouteModel(seed, trims=True).run(400)
