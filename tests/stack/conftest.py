"""The servers of catalogs: each is started once for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack.engines import needed_server
from tests.stack.servers import KeyValueServer, PostgresServer, postgres_server


@pytest.fixture(scope="module")
def postgresql() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyValueServer]:
    yield from needed_server("etcd", tmp_path_factory)


@pytest.fixture(scope="module")
def oxia(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyValueServer]:
    yield from needed_server("oxia", tmp_path_factory)
