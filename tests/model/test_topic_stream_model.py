"""A stream without a session delivers each record once, of topics that exist and of those created later."""

from __future__ import annotations

import pytest

from tests.model.topic_stream_model import TopicStreamModel

RUNS = 60
STEPS = 120


@pytest.mark.parametrize("seed", range(RUNS))
def test_streams_find_topics_and_deliver_every_record(seed: int) -> None:
    model = TopicStreamModel(seed)
    for _ in range(STEPS):
        model.step()
    model.finish()
    assert model.counts["record"]


def test_the_model_meets_every_event() -> None:
    counts: dict[str, int] = {}
    for seed in range(20):
        model = TopicStreamModel(seed)
        for _ in range(STEPS):
            model.step()
        model.finish()
        for name, count in model.counts.items():
            counts[name] = counts.get(name, 0) + count
    assert all(counts.values()), counts
