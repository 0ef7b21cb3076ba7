"""One suite over every kind of catalog for shared topics: they do the same."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from shared.runtime.retries import Retries
from tests.harness.catalog.shared_crowd import PRODUCERS_MAX, SharedCrowd
from tests.harness.machine.manual_clock import ManualClock
from tests.stack.servers import PostgresServer, postgres_server
from tests.stack.shared_engines import ServerClock
from topicsd.catalog.shared.postgresql_shared import PostgresqlSharedCatalog
from topicsd.catalog.shared.shared_catalog import SharedCatalog
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog

POLICY = Retries(time.monotonic, time.sleep, 10.0)
_databases = itertools.count()


class Engine(NamedTuple):
    """What opens the catalog of one test, as another node would, and its clock."""

    open: Callable[[], SharedCatalog]
    clock: ManualClock


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    opened: list[SharedCatalog] = []
    clock = ManualClock()
    if request.param == "sqlite":
        path = str(tmp_path / "catalog.sqlite")

        def open_one() -> SharedCatalog:
            opened.append(SqliteSharedCatalog(path, clock.now_ms, producers_max=PRODUCERS_MAX))
            return opened[-1]
    else:
        url = request.getfixturevalue("postgresql").new_database(f"shared_{next(_databases)}")

        def open_one() -> SharedCatalog:
            opened.append(PostgresqlSharedCatalog(url, POLICY, PRODUCERS_MAX))
            return opened[-1]

        open_one()
        clock = ServerClock(url)
    yield Engine(open_one, clock)
    for catalog in opened:
        catalog.close()
    if isinstance(clock, ServerClock):
        clock.close()


@pytest.mark.parametrize("seed", range(2))
def test_brokers_agree_with_the_oracle_when_requests_and_answers_are_lost(engine: Engine, seed: int) -> None:
    SharedCrowd([engine.open() for _ in range(3)], seed, engine.clock).run(1000)
