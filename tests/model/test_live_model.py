"""A stream delivers each record once and in order, or reports its loss, whatever happens around it."""

from __future__ import annotations

import pytest

from tests.model.stream_model import StreamModel

RUNS = 60
STEPS = 120


@pytest.mark.parametrize("seed", range(RUNS))
def test_streams_deliver_or_report_every_record(seed: int) -> None:
    model = StreamModel(seed)
    for _ in range(STEPS):
        model.step()
    model.finish()
