"""Whatever happens around a stream: each record in order exactly once for its cursor, or its loss is told."""

from __future__ import annotations

import pytest

from tests.harness.live_model import LiveModel

RUNS = 60
STEPS = 120


@pytest.mark.parametrize("seed", range(RUNS))
def test_streams_are_told_of_everything(seed: int) -> None:
    model = LiveModel(seed)
    for _ in range(STEPS):
        model.step()
    model.finish()
