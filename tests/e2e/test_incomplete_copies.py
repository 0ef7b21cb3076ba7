"""Incomplete copies of a directory: without its empty folders, or without LAYOUT.json."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.topic_client import TopicClient
from tests.harness.output.command_run import fingerprint, run_here
from tests.harness.server.everything import Everything, ask, server
from tests.harness.server.everything_fill import KEY
from tests.harness.server.whole_server import WholeServer, name_on
from tests.harness.shard.data_dirs import DIRECTORIES, flip
from topicsd.disk.layout import LAYOUT_NAME


def drop_empty_folders(root: Path) -> list[Path]:
    """Delete empty folders, as `find ROOT -type d -empty -delete` does."""
    dropped = []
    for folder, _, _ in os.walk(root, topdown=False):
        if not os.listdir(folder):
            os.rmdir(folder)
            dropped.append(Path(folder))
    return dropped


def messages(log: Path, level: str) -> list[str]:
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [row["message"] for row in rows if row["level"] == level]


@pytest.fixture
def pruned(everything: Everything, tmp_path: Path) -> Everything:
    copy = everything.copied(tmp_path)
    (tmp_path / "log").unlink()
    assert drop_empty_folders(copy.data)
    return copy


@pytest.mark.parametrize("command", ["inspect", "verify", "doctor"])
def test_commands_read_a_copy_without_its_empty_folders(pruned: Everything, command: str) -> None:
    before = fingerprint(pruned.data)
    ran = run_here(command, pruned.data)
    assert (ran.code, ran.err) == (0, ""), ran.out
    assert "checkpoint" not in ran.out
    assert run_here("inspect", pruned.data, "--checkpoint").code == 0
    assert fingerprint(pruned.data) == before


def test_a_server_starts_on_it_with_one_warning_and_all_its_data(pruned: Everything) -> None:
    with server(pruned.folder) as running:
        said = ask(TopicClient(running.port, KEY))
        (warning,) = [one for one in messages(pruned.folder / "log", "warning") if "empty" in one]
        assert "shards/00/quarantine" in warning
    for topic, state in pruned.said.states.items():
        if state["config"]["durability"] != "ephemeral":
            assert said.states[topic]["count"] == state["count"], topic
            assert said.states[topic]["epoch"] == state["epoch"], topic


def test_a_shard_that_was_never_written_may_lack_all_of_its_folders(tmp_path: Path) -> None:
    with WholeServer(tmp_path) as running:
        TopicClient(running.port).append(name_on(0, 2, "orders"), {"data": 1})
        running.stop()
    drop_empty_folders(tmp_path / "data")
    assert os.listdir(tmp_path / "data/shards/01") == ["LOCK"]
    for command in ("inspect", "verify", "doctor"):
        assert run_here(command, tmp_path / "data").code == 0
    with WholeServer(tmp_path) as running:
        api = TopicClient(running.port)
        assert len(api.rows(name_on(0, 2, "orders"))) == 1
        api.append(name_on(1, 2, "bills"), {"data": 1})


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    DIRECTORIES["of_many_shards"](tmp_path)
    os.rename(tmp_path / "shards/01", tmp_path / "elsewhere")
    for command in ("inspect", "verify", "doctor"):
        ran = run_here(command, tmp_path)
        assert (ran.code, ran.out) == (1, "")
        assert f"{tmp_path}/shards/01: missing, but LAYOUT.json names 3 shards: the topics of" in ran.err


# -- LAYOUT.json -------------------------------------------------------------------------------------------


def lose_layout(path: Path) -> None:
    (path / LAYOUT_NAME).unlink()


def damage_layout(path: Path) -> None:
    flip(path / LAYOUT_NAME, 60)


def instance(path: Path) -> str:
    return str(json.loads((path / LAYOUT_NAME).read_text())["instance"])


@pytest.mark.parametrize("lose", [lose_layout, damage_layout])
def test_doctor_writes_the_layout_again(
    everything: Everything, tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    copy = everything.copied(tmp_path)
    before, text = instance(copy.data), (copy.data / LAYOUT_NAME).read_bytes()
    lose(copy.data)
    ran = run_here("verify", copy.data)
    assert ran.code == 1
    assert f"topicsd doctor {copy.data}" in ran.err
    ran = run_here("doctor", copy.data)
    assert ran.code == 1
    assert "1 problem found" in ran.out
    assert f"To see what a repair would do and lose: topicsd doctor {copy.data} --repair\n" in ran.out
    ran = run_here("doctor", copy.data, "--repair")
    output = " ".join(ran.out.split())
    assert f"1. write LAYOUT.json for 2 shards, one for each directory, and instance {before}" in output
    assert "check shards/01 must be the last shard: no file records the number of shards" in output
    apply = f"topicsd doctor {copy.data} --repair --apply"
    assert f"Nothing was changed. To apply the repair above: {apply}" in output
    ran = run_here("doctor", copy.data, "--repair", "--apply", "--json")
    assert (ran.code, ran.json["layout"]["repaired"]) == (0, True)
    assert (copy.data / LAYOUT_NAME).read_bytes() == text
    assert (copy.data / "LAYOUT.json.damaged").exists() == (lose is damage_layout)
    assert run_here("verify", copy.data).code == 0


def test_a_layout_without_other_files_gets_a_new_instance(tmp_path: Path) -> None:
    DIRECTORIES["untouched"](tmp_path)
    before = instance(tmp_path)
    lose_layout(tmp_path)
    ran = run_here("doctor", tmp_path, "--repair", "--apply")
    assert ran.code == 0
    said = "for 1 shard, one for each directory, and a new instance, since no file names the old one"
    assert said in " ".join(ran.out.split())
    assert instance(tmp_path) != before


Break = Callable[[Path], Any]
REFUSED: dict[str, tuple[Break, str]] = {
    "a shard in the middle is missing": (
        lambda path: os.rename(path / "shards/01", path / "elsewhere"),
        "shards/01 is missing",
    ),
    "two shards changed names": (
        lambda path: (
            os.rename(path / "shards/01", path / "elsewhere"),
            os.rename(path / "shards/02", path / "shards/01"),
            os.rename(path / "elsewhere", path / "shards/02"),
        ),
        "shards/01 contains files of shard 02",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_layout_that_cannot_be_derived_from_the_shards_is_refused(tmp_path: Path, name: str) -> None:
    breaks, said = REFUSED[name]
    DIRECTORIES["of_many_shards"](tmp_path)
    lose_layout(tmp_path)
    breaks(tmp_path)
    ran = run_here("doctor", tmp_path, "--repair", "--apply")
    assert (ran.code, ran.out) == (1, "")
    assert "it cannot be rebuilt: " in ran.err
    assert said in ran.err
    assert not (tmp_path / LAYOUT_NAME).exists()


def test_shards_of_two_directories_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with WholeServer(tmp_path / name) as running:
            api = TopicClient(running.port)
            for shard in range(2):
                api.append(name_on(shard, 2, "orders"), {"data": 1})
            running.stop()
    one, two = tmp_path / "one/data", tmp_path / "two/data"
    os.rename(one / "shards/01", one / "elsewhere")
    os.rename(two / "shards/01", one / "shards/01")
    lose_layout(one)
    ran = run_here("doctor", one)
    assert ran.code == 1
    assert "the shards belong to different data directories: shards/00 belongs to " in ran.err


def test_a_server_suggests_doctor(tmp_path: Path) -> None:
    DIRECTORIES["clean"](tmp_path / "data")
    for lose in (damage_layout, lose_layout):
        lose(tmp_path / "data")
        ran = run_here("serve", "--port=0", f"--data-dir={tmp_path / 'data'}")
        assert ran.code == 1
        assert f"topicsd doctor {tmp_path / 'data'}" in ran.err
