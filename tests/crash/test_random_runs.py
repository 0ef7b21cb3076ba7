"""Long random scripts with random ends: what no small script was written for."""

from __future__ import annotations

import os
import time

import pytest

from tests.harness.sweeps.attempts import attempt
from tests.harness.sweeps.crash_sweep import DEEP
from tests.harness.sweeps.random_run import RandomRun

RUNS = "crash, random runs of 8 generations"
GENERATIONS = 8
FIXED_RUNS = 100
CHANGING_RUNS = 25
DEEP_SECONDS = 1200.0

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet_log")]


def play(seed: str) -> None:
    run = RandomRun(seed)
    with attempt(RUNS, f"play({seed!r})", run.steps):
        run.play(GENERATIONS)


@pytest.mark.parametrize("part", range(10))
def test_random_runs_of_fixed_seeds_keep_what_was_acked(part: int) -> None:
    for number in range(FIXED_RUNS // 10):
        play(f"{part}-{number}")


def test_random_runs_of_new_seeds_keep_what_was_acked() -> None:
    start = os.environ.get("TOPICS_TEST_SEED", str(time.time_ns()))
    print(f"the seeds begin with {start}")
    for number in range(CHANGING_RUNS):
        play(f"{start}-{number}")


@pytest.mark.deep
@pytest.mark.skipif(not DEEP, reason="TOPICS_TEST_DEEP is not set")
def test_random_runs_for_a_long_time_keep_what_was_acked() -> None:
    start = os.environ.get("TOPICS_TEST_SEED", str(time.time_ns()))
    print(f"the seeds begin with {start}")
    end = time.monotonic() + DEEP_SECONDS
    number = 0
    while time.monotonic() < end:
        play(f"deep-{start}-{number}")
        number += 1
