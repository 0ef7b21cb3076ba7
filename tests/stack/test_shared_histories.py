"""Histories of simulated brokers over PostgreSQL: they are those of the model, byte for byte.

Each verb is a real transaction. The clock of the database is the virtual one, so leases, ages and append ids
expire as they do in the model; what a clock of the database does that steps is not in these histories.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.brokers.broker_episode import BrokerEpisode
from tests.harness.cluster.histories.episode import Report
from tests.stack.engines import POLICY, ServerClock
from tests.stack.servers import PostgresServer, postgres_server
from topicsd.catalog.shared.postgresql_shared import PostgresqlSharedCatalog

pytestmark = pytest.mark.usefixtures("quiet_log")

SEEDS, DEEP_SEEDS = 2, 60
_databases = itertools.count()


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresServer]:
    """A server that is not stopped, and so needs no sync of its disk."""
    with postgres_server(["fsync=off"]) as server:
        yield server


class ClockedCatalog:
    """A catalog in PostgreSQL whose clock is set before each verb."""

    def __init__(self, url: str, now_ms: Callable[[], int]) -> None:
        self._real = PostgresqlSharedCatalog(url, POLICY)
        self._now_ms = now_ms
        self._clock = ServerClock(url)

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        self._clock.advance(self._now_ms() - self._clock.now_ms())
        return getattr(self._real, verb)  # type: ignore[no-any-return]

    def close(self) -> None:
        self._clock.close()
        self._real.close()


def compare(postgresql: PostgresServer, seeds: range) -> None:
    def open_postgresql(now_ms: Callable[[], int]) -> Any:
        return ClockedCatalog(postgresql.new_database(f"history_{next(_databases)}"), now_ms)

    for seed in seeds:
        model: Report = BrokerEpisode(f"p{seed}").run()
        real: Report = BrokerEpisode(f"p{seed}", make_catalog=open_postgresql).run()
        assert model.digest == real.digest, f"seed p{seed}"
        assert model == real


def test_postgresql_has_the_same_histories_as_the_model(postgresql: PostgresServer) -> None:
    compare(postgresql, range(SEEDS))


@pytest.mark.deep
def test_postgresql_has_the_same_long_histories_as_the_model(postgresql: PostgresServer) -> None:
    compare(postgresql, range(100, 100 + DEEP_SEEDS))
