"""Nodes with brokers that join, leave and change their weights, as `GET /v0/cluster` shows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shared.runtime.clock import SystemClock
from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WholeServer
from topicsd.broker.rendezvous import home_of
from topicsd.catalog.shared.sqlite_shared import SqliteSharedCatalog

TOPICS = [f"orders:{number}" for number in range(200)]


def node(folder: Path, name: str, weight: str = "1") -> WholeServer:
    (folder / name).mkdir(exist_ok=True)
    flags = (f"--store-url=file://{folder / 'store'}", f"--node-weight={weight}")
    return WholeServer(folder / name, *flags, shards=0)


@pytest.fixture
def first(tmp_path: Path) -> Iterator[WholeServer]:
    (tmp_path / "store").mkdir()
    with node(tmp_path, "first") as server:
        path = str(tmp_path / "store" / "catalog.sqlite")
        with closing(SqliteSharedCatalog(path, SystemClock().now_ms)) as catalog:
            for number, name in enumerate(TOPICS, 1):
                catalog.create(name, number, b"{}")
        yield server


def nodes_of(server: WholeServer) -> dict[str, Any]:
    return {one["node"]: one for one in server.ask_json("GET", "/v0/cluster")["nodes"]}


def homes_of(server: WholeServer) -> dict[str, str]:
    """Return the home of each topic; each node is shown with the number of its homes."""
    nodes = nodes_of(server)
    weights = {name: one["weight"] for name, one in nodes.items()}
    homes = {topic: home_of(topic, weights) or "" for topic in TOPICS}
    for name, one in nodes.items():
        assert one["homes"] == list(homes.values()).count(name)
    return homes


def moved(before: dict[str, str], after: dict[str, str]) -> list[tuple[str, str]]:
    """Return where each topic with another home was and is."""
    return [(before[topic], after[topic]) for topic in TOPICS if before[topic] != after[topic]]


def test_what_moves_when_nodes_join_leave_and_change_their_weights(
    first: WholeServer, tmp_path: Path
) -> None:
    alone = homes_of(first)
    (first_name,) = nodes_of(first)
    assert set(alone.values()) == {first_name}
    with node(tmp_path, "second") as second:
        first.wait_for(lambda: len(nodes_of(first)) == 2, "the second node joins")
        assert nodes_of(first).keys() == nodes_of(second).keys()
        (second_name,) = nodes_of(first).keys() - {first_name}
        assert nodes_of(first)[second_name]["address"] == f"http://127.0.0.1:{second.port}"
        assert nodes_of(first)[second_name]["share"] == 0.5
        joined = homes_of(first)
        assert set(moved(alone, joined)) == {(first_name, second_name)}
        assert 60 <= len(moved(alone, joined)) <= 140
        # A clean stop leaves at once, long before a heartbeat expires.
        assert second.stop() == 0
        assert homes_of(first) == alone
    with node(tmp_path, "second", weight="3"):
        first.wait_for(lambda: second_name in nodes_of(first), "the second node joins again")
        heavier = homes_of(first)
        assert nodes_of(first)[second_name]["share"] == 0.75
        # The same node took more homes, and gave none away.
        assert set(moved(joined, heavier)) == {(first_name, second_name)}


def test_a_node_of_weight_0_takes_no_homes_and_serves(first: WholeServer, tmp_path: Path) -> None:
    alone = homes_of(first)
    with node(tmp_path, "second", weight="0") as second:
        first.wait_for(lambda: len(nodes_of(first)) == 2, "the second node joins")
        assert homes_of(second) == alone
        assert second.ask("GET", "/health").status == 200


def test_the_command_shows_the_nodes(first: WholeServer) -> None:
    (name,) = nodes_of(first)
    url = f"http://127.0.0.1:{first.port}"
    shown = run_here("cluster", "status", "--url", url)
    assert shown.code == 0
    assert shown.out.splitlines()[0] == f"1 node, homes of {len(TOPICS)} topics"
    assert name in shown.out
    assert url in shown.out
    assert "100 %" in shown.out
    as_json = run_here("cluster", "status", "--url", url, "--json")
    assert as_json.json["nodes"][0]["node"] == name
    assert "actions" in run_here("cluster").out
