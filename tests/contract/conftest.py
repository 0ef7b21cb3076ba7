"""One server for the tests of a file, a topic for each test, and every test through both lanes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.contract.api import Api
from tests.harness.http_server import LANES, HttpServer
from tests.harness.raw_client import RawClient


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(params=LANES)
def lane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[-200:].strip("-")


@pytest.fixture
def api(server: HttpServer, lane: str, topic: str) -> Iterator[Api]:
    with RawClient(server.ports[lane]) as client:
        yield Api(client, topic)
