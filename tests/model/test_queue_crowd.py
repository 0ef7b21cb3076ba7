"""Whatever fails, a job has at most one holder, is done at most once, and is never lost."""

from __future__ import annotations

import pytest

from tests.model.queue_crowd import QueueCrowd

pytestmark = pytest.mark.usefixtures("quiet_log")


@pytest.mark.parametrize("seed", range(25))
def test_a_crowd_of_workers_does_each_job_once(seed: int) -> None:
    print("seed", seed)
    crowd = QueueCrowd(seed)
    crowd.run(80)
    assert crowd.counts["ack"] > 0


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10_000, 10_200))
def test_a_crowd_of_workers_does_each_job_once_in_long_runs(seed: int) -> None:
    print("seed", seed)
    crowd = QueueCrowd(seed)
    crowd.run(1500)
    print(crowd.counts)
    events = ("ack", "nack", "redriven", "crashes", "crashes during work", "waited")
    assert min(crowd.counts[event] for event in events) > 0
    assert not any(crowd.is_in_order.values()) or crowd.counts["in turn"] > 0
