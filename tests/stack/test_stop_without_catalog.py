"""A node whose catalog is away stops soon: nothing is repeated for a process that ends."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest

from tests.harness.server.whole_server import WholeServer
from tests.stack.servers import PostgresServer

pytestmark = pytest.mark.slow

STOP_SECONDS: Final = 5.0
"""A request to the catalog is repeated for 10 s while the process runs."""
AWAY_SECONDS: Final = 3.0


def test_a_node_stops_soon_while_its_catalog_is_away(tmp_path: Path, postgresql: PostgresServer) -> None:
    (tmp_path / "objects").mkdir()
    environ = {
        "TOPICS_STORE_URL": f"file://{tmp_path}/objects",
        "TOPICS_CATALOG_URL": postgresql.new_database("away"),
    }
    with WholeServer(tmp_path, shards=1, environ=environ) as server:
        server.ask_json("POST", "/v0/topics/local", {"records": [{"data": 1}], "create": True})
        assert server.ask("PUT", "/v0/topics/shared", {"placement": "shared"}).status == 201
        server.wait_for(
            lambda: server.ask("GET", "/v0/topics/local/owner").status == 200, "the topic has a row"
        )
        postgresql.stop()
        # A row that is to be created.
        server.ask("PUT", "/v0/topics/later", {})
        time.sleep(AWAY_SECONDS)
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < STOP_SECONDS
    postgresql.start()
