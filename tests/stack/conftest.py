"""The servers of catalogs and stores: each is started once for the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stack.engines import needed_server
from tests.stack.servers import KeyValueServer, PostgresServer, S3Server, postgres_server, s3_server


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


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server
