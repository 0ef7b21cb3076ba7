"""Random histories of nodes that share a catalog: one owner for each topic, and no seq twice."""

from __future__ import annotations

import pytest

from tests.harness.catalog.node_crowd import NodeCrowd


@pytest.mark.parametrize("seed", range(60))
def test_no_seq_is_given_out_twice_whatever_happens(seed: int) -> None:
    crowd = NodeCrowd(seed)
    crowd.run(300)
    assert crowd.outcomes["appended"]
    assert crowd.outcomes["ended"]
