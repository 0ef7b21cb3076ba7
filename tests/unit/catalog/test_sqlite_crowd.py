"""Several nodes use one SQLite catalog at random, beside an oracle; requests and answers are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.catalog.catalog_crowd import CatalogCrowd
from tests.harness.catalog.unsynced_sqlite import connect_unsynced
from topicsd.catalog.sqlite_catalog import SqliteCatalog


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_nodes_that_lose_requests_and_answers_agree_with_the_oracle(tmp_path: Path, seed: int) -> None:
    catalogs = [SqliteCatalog(str(tmp_path / "catalog.sqlite"), connect_unsynced) for _ in range(3)]
    crowd = CatalogCrowd(catalogs, seed)
    crowd.run(3000)
    assert min(crowd.outcomes[kind] for kind in ("done", "fenced", "refused", "lost answer")) > 20
    assert len(crowd.given) > 100
    for catalog in catalogs:
        catalog.close()
