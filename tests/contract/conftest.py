"""One server for the tests of a file, a topic for each test, and every test through all lanes.

What is about the framing of HTTP/1.1 is marked `http1`, and does not go through the lane of HTTP/2.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.contract.api import Api
from tests.harness.server.http_server import ALL_PORTS, HTTP1_PORTS, HttpServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with HttpServer(tmp_path_factory.mktemp("data")) as running:
        yield running


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "lane" in metafunc.fixturenames and "lane" not in given:
        is_http1 = metafunc.definition.get_closest_marker("http1") is not None
        metafunc.parametrize("lane", HTTP1_PORTS if is_http1 else ALL_PORTS)


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name)[-200:].strip("-")


@pytest.fixture
def path(topic: str) -> str:
    return f"/v0/topics/{topic}"


@pytest.fixture
def api(server: HttpServer, lane: str, topic: str) -> Iterator[Api]:
    with server.connect(lane) as client:
        yield Api(client, topic)
