from __future__ import annotations

import json
import math
import random
import subprocess

import pytest

from loadtest.clients.generator import program

SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999, "max": 1.0}


def percentiles(values: list[int]) -> dict[str, float]:
    done = subprocess.run(
        [program(), "--percentiles"],
        input="\n".join(map(str, values)),
        capture_output=True,
        text=True,
        check=True,
    )
    report: dict[str, float] = json.loads(done.stdout)
    return report


@pytest.mark.parametrize("top", [100, 256, 5_000, 10**9, 2**63])
def test_a_percentile_is_never_below_the_true_one_and_hardly_above(top: int) -> None:
    seed = random.Random(top)
    values = [int(seed.random() ** 3 * top) for _ in range(5000)]
    report = percentiles(values)
    ordered = sorted(values)
    for name, share in SHARES.items():
        true = ordered[math.ceil(share * len(ordered)) - 1] / 1000
        assert true - 0.0006 <= report[name] <= true * (1 + 1 / 128) + 0.0006, name
    assert report["count"] == len(values)
    assert math.isclose(report["mean"], sum(values) / len(values) / 1000, rel_tol=1e-3, abs_tol=0.0006)


def test_an_empty_histogram_is_all_zeros() -> None:
    assert set(percentiles([]).values()) == {0}


@pytest.mark.parametrize("value", [0, 255, 256, 257, 511, 512, 2**40 - 1, 2**40, 2**64 - 1])
def test_a_single_value_is_reported_exactly(value: int) -> None:
    report = percentiles([value])
    assert {report[name] for name in SHARES} == {report["max"]}
    assert math.isclose(report["max"], value / 1000, rel_tol=1e-12, abs_tol=0.0006)
