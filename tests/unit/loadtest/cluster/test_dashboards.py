from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtest.cluster.run_folder import new_run
from loadtest.cluster.scenario import make_scenario
from loadtest.cluster.stack import prometheus
from loadtest.cluster.stack.cluster_stack import Stack
from loadtest.cluster.stack.prometheus import clear_targets, start_prometheus, targets, write_files
from loadtest.cluster.stack.tracked import Tracked
from topicsd.service.cluster.broker_metrics import METRICS, PREFIX

DASHBOARDS = sorted((Path(prometheus.__file__).parents[1] / "dashboards").glob("*.json"))
EXPORTED = {f"{PREFIX}_info", f"{PREFIX}_catalog_requests_by_verb_total"} | {
    f"{PREFIX}_{one.section}_{one.name}{'_total' if one.kind == 'counter' else ''}" for one in METRICS
}


def queries(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_asks_for_metrics_that_brokers_export(path: Path) -> None:
    dashboard = msgspec.json.decode(path.read_bytes())
    names = {name for query in queries(dashboard) for name in re.findall(rf"{PREFIX}_\w+", query)}
    assert names
    assert names <= EXPORTED
    assert all('{run="$run"}' in query for query in queries(dashboard))
    identifiers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identifiers)) == len(identifiers)


def node(name: str, port: int) -> Tracked:
    return Tracked(name=name, pid=1, start_time="1", port=port, url="", log="", command=[])


def test_the_targets_are_the_nodes_with_the_shape_of_the_run_and_are_removed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = make_scenario({"name": "small", "nodes": 2, "topics": 3, "partitions": 5})
    folder = new_run(scenario, tmp_path)
    stack = Stack(run=str(folder.path), processes=[node("store", 1), node("node-0", 2), node("node-1", 3)])
    groups = targets(scenario, folder, stack)
    assert [group["targets"] for group in groups] == [["127.0.0.1:2"], ["127.0.0.1:3"]]
    assert [group["labels"]["node"] for group in groups] == ["node-0", "node-1"]
    assert groups[0]["labels"]["run"] == folder.path.name
    assert groups[0]["labels"]["scenario_partitions"] == "15"
    clear_targets(folder)
    assert not folder.prometheus.exists(), "a run without Prometheus has no targets"
    write_files(scenario, folder, stack)
    path = folder.prometheus / "targets.json"
    assert msgspec.json.decode(path.read_bytes()) == groups
    clear_targets(folder)
    assert msgspec.json.decode(path.read_bytes()) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    assert start_prometheus(scenario, folder, stack, {}, lambda tracked: None) is False
