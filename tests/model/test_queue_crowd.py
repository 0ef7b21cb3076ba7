"""At most one has a job at a time, what is done is done once, and no job is lost, whatever goes wrong."""

from __future__ import annotations

import pytest

from tests.model.queue_crowd import QueueCrowd

pytestmark = pytest.mark.usefixtures("quiet_log")


@pytest.mark.parametrize("seed", range(25))
def test_a_crowd_of_workers_does_each_job_once(seed: int) -> None:
    print("seed", seed)
    crowd = QueueCrowd(seed)
    crowd.run(80)
    assert crowd.counted["ack"] > 0


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10_000, 10_200))
def test_a_crowd_of_workers_does_each_job_once_for_long(seed: int) -> None:
    print("seed", seed)
    crowd = QueueCrowd(seed)
    crowd.run(1500)
    print(crowd.counted)
    whats = ("ack", "nack", "redriven", "lost", "lost in the middle")
    assert min(crowd.counted[what] for what in whats) > 0
    assert not any(crowd.is_in_order.values()) or crowd.counted["in turn"] > 0
