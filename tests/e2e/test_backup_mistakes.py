"""Wrong arguments of `topicsd backup` are refused before anything is written, with the reason."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.harness.output.command_run import run_here
from tests.harness.shard.one_shard import RealShard, record


@pytest.fixture
def data(tmp_path: Path) -> Path:
    one = RealShard(tmp_path / "data")
    one.append("t", record("x"))
    one.close()
    return tmp_path / "data"


@pytest.mark.parametrize("place", ["data", "data/inside", "link"])
def test_a_backup_into_its_own_data_directory_is_refused(tmp_path: Path, data: Path, place: str) -> None:
    (data / "inside").mkdir()
    (tmp_path / "link").symlink_to(data)
    before = sorted(os.listdir(data))
    ran = run_here("backup", "create", data, "--to", tmp_path / place)
    assert ran.code == 2
    assert "is in the data directory, and is lost with it; name a folder outside of it" in ran.err
    assert sorted(os.listdir(data)) == before


def test_a_server_that_is_not_reached_is_named_with_the_reason(tmp_path: Path, data: Path) -> None:
    (tmp_path / "store").mkdir()
    create = ("backup", "create", data, "--to", tmp_path / "store")
    ran = run_here(*create, "--url", "http://127.0.0.1:1")
    assert ran.code == 2
    assert ran.err == "topicsd: --url: no response from http://127.0.0.1:1: Connection refused\n"


def test_topics_are_restored_only_into_a_running_server_under_different_names(
    tmp_path: Path, data: Path
) -> None:
    (tmp_path / "store").mkdir()
    assert run_here("backup", "create", data, "--to", tmp_path / "store").code == 0
    restored = tmp_path / "restored"
    assert run_here("backup", "restore", tmp_path / "store", restored).code == 0
    topic = ("backup", "restore", tmp_path / "store", restored, "--topic")
    ran = run_here(*topic, "t=new")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"topicsd: {restored} has no server: no server has used it yet; start one\n"
    ran = run_here(*topic, "t=new", "--topic", "t=new")
    assert ran.err == "topicsd: --topic: two topics cannot have the new name 'new'\n"


def test_a_prune_says_why_it_keeps_objects(tmp_path: Path, data: Path) -> None:
    (tmp_path / "store").mkdir()
    for _ in range(2):
        assert run_here("backup", "create", data, "--to", tmp_path / "store").code == 0
        one = RealShard(data)
        one.append("t", record("more"))
        one.close()
    ran = run_here("backup", "prune", tmp_path / "store", "--keep", "1")
    assert ran.code == 0
    assert ran.out.splitlines()[-2] == "deleted 0 objects, 0 B"
    assert re.fullmatch(r"kept \d+ unnamed objects? younger than 24 hours", ran.out.splitlines()[-1])


@pytest.mark.usefixtures("alone")
def test_a_server_over_an_unfinished_restore_names_the_one_command_that_helps(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "RESTORING").touch()
    ran = run_here("serve", "--data-dir", tmp_path / "data")
    assert ran.code != 0
    assert ran.err.endswith("a restore has not ended here; run the same `topicsd backup restore` again\n")
