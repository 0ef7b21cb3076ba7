from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import pytest

from loadtest.cluster.commands import add_parser, scenario_of
from loadtest.cluster.run_folder import Lines, NoRun, new_run, open_run, read_lines
from loadtest.cluster.scenario import (
    Scenario,
    ScenarioError,
    load_scenario,
    make_scenario,
    scenario_names,
)


def parsed(*arguments: str) -> Scenario:
    parser = argparse.ArgumentParser()
    add_parser(parser)
    return scenario_of(parser.parse_args(["run", *arguments]))


@pytest.mark.parametrize("name", scenario_names())
def test_every_scenario_of_the_project_can_be_run(name: str) -> None:
    assert load_scenario(name, {}).name == name


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_scenario_is_a_toml_or_a_json_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"wide.{suffix}"
    path.write_text("nodes = 3\nowners = 2" if suffix == "toml" else '{"nodes":3,"owners":2}')
    scenario = load_scenario(str(path), {"seconds": 2.0})
    assert (scenario.name, scenario.nodes, scenario.owners, scenario.seconds) == ("wide", 3, 2, 2.0)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"node": 3}, "unknown field `node`"),
        ({"nodes": 0}, "`int` >= 1 - at `$.nodes`"),
        ({"owners": 2}, "owners: must be at most nodes (1), got 2"),
        ({"record_bytes": 10}, ">= 64 - at `$.record_bytes`"),
        ({"nodes": 2, "owners": 2, "readers": "others"}, 'readers: "others" needs a node that owns nothing'),
        ({"settings": {"PATH": "x"}}, "settings.PATH: must begin with TOPICS_"),
        ({"catalog": "mysql"}, "$.catalog"),
        ({"client_processes": 9}, "client_processes: must be at most the number of partitions (4)"),
    ],
)
def test_a_wrong_scenario_is_refused_with_its_field(fields: dict[str, object], problem: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        make_scenario(fields)
    assert problem in str(refused.value)


def test_an_unknown_scenario_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match=r"known are .*smoke"):
        load_scenario("unknown", {})


def test_flags_replace_fields_of_the_scenario() -> None:
    scenario = parsed(
        "smoke", "--nodes=3", "--seconds=1.5", "--selection=least_inflight", "--set=TOPICS_X=1=2"
    )
    assert (scenario.nodes, scenario.seconds, scenario.selection) == (3, 1.5, "least_inflight")
    assert scenario.settings == {"TOPICS_X": "1=2"}
    assert scenario.owners == load_scenario("smoke", {}).owners


def test_the_resolved_config_has_every_field(tmp_path: Path) -> None:
    folder = new_run(make_scenario({"name": "small", "nodes": 2}), tmp_path)
    written = msgspec.json.decode(folder.config.read_bytes())
    assert sorted(written) == sorted(field.name for field in msgspec.structs.fields(Scenario))
    assert folder.scenario == make_scenario({"name": "small", "nodes": 2})
    assert msgspec.json.decode(folder.environment.read_bytes())["commit"]


def test_the_last_run_is_found_and_a_missing_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoRun):
        open_run("", tmp_path)
    new_run(make_scenario({"name": "a"}), tmp_path)
    last = new_run(make_scenario({"name": "a"}), tmp_path)
    assert open_run("", tmp_path).path == last.path
    assert open_run(last.path.name, tmp_path).path == last.path
    assert open_run(str(last.path), tmp_path).path == last.path
    with pytest.raises(NoRun, match="cluster up"):
        open_run("other", tmp_path)


def test_lines_of_several_writers_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    first, second = Lines(path), Lines(path)
    first.add({"a": 1}, {"a": 2})
    second.add({"b": 1})
    first.add({"a": 3})
    first.close()
    second.close()
    assert read_lines(path) == [{"a": 1}, {"a": 2}, {"b": 1}, {"a": 3}]
    assert read_lines(tmp_path / "missing.jsonl") == []
