"""Random work on a queue, checked against an oracle."""

from __future__ import annotations

import pytest

from tests.model.queue_model import QueueModel
from topicsd.engine.queue import lease_queue


# The last ones are histories in which the number of jobs in flight decides which tag is next.
@pytest.mark.parametrize("seed", [*range(40), 252, 286, 289])
def test_random_work_matches_the_oracle(seed: int) -> None:
    print("seed", seed)
    QueueModel(seed).run(60)


@pytest.mark.parametrize("seed", range(20_000, 20_020))
def test_random_work_matches_the_oracle_when_jobs_are_removed_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print("seed", seed)
    monkeypatch.setattr(lease_queue, "REMOVED_AT_ONCE", 1)
    QueueModel(seed).run(60)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(10_000, 10_400))
def test_random_work_matches_the_oracle_in_long_runs(seed: int) -> None:
    print("seed", seed)
    QueueModel(seed).run(600)
