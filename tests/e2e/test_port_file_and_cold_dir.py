"""The port file and the cold directory are checked before the server starts or creates anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.harness.output.command_run import run_here
from topicsd.cli.outside_paths import cold_dir_problem, port_file_problem
from topicsd.disk.fs import RealFs

FS = RealFs()

pytestmark = pytest.mark.usefixtures("alone")


@pytest.mark.parametrize(
    ("cold", "why"),
    [
        ("data", "must not be the data directory"),
        ("data/../data/", "must not be the data directory"),
        ("link", "must not be the data directory"),
        ("data/shards", "must not be inside the shards"),
        ("data/shards/00", "must not be inside the shards"),
        ("data/shards/00/trash", "must not be inside the shards"),
        ("above", "must not be inside its shards"),
        ("file", "is not a directory"),
        ("missing", "no such directory; create it, or mount its disk"),
    ],
)
def test_an_unusable_cold_directory_is_refused(tmp_path: Path, cold: str, why: str) -> None:
    data = tmp_path / "above/shards/data"
    (data / "shards/00/trash").mkdir(parents=True)
    (tmp_path / "data").symlink_to(data)
    (tmp_path / "link").symlink_to(data)
    (tmp_path / "file").touch()
    assert why in cold_dir_problem(FS, cold, "data")
    ran = run_here("serve", "--cold-dir", cold, "--data-dir", "data")
    assert ran.code == 2
    assert ran.err.startswith(f"topicsd: --cold-dir={cold!r}: ")
    assert why in ran.err
    assert os.listdir(data) == ["shards"]


def test_a_cold_directory_beside_above_or_in_the_data_directory_is_accepted(tmp_path: Path) -> None:
    for name in ("data/cold", "cold", "data-cold"):
        (tmp_path / name).mkdir(parents=True)
    for cold in ("data/cold", "cold", "data-cold", str(tmp_path)):
        assert cold_dir_problem(FS, cold, "data") == ""
    assert cold_dir_problem(FS, "", "data") == ""
    assert cold_dir_problem(FS, "cold", "not-made-yet") == ""


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("missing/port", "there is no directory {here}/missing"),
        ("file/port", "{here}/file is not a directory"),
        ("folder", "is a directory, not a file"),
    ],
)
def test_a_port_file_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, why: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setenv("TOPICS_PORT_FILE", path)
    ran = run_here("serve")
    assert ran.code == 2
    assert ran.err == f"topicsd: TOPICS_PORT_FILE={path!r}: {why.format(here=tmp_path)}\n"
    assert not os.path.exists("topics-data")
    assert port_file_problem(FS, "folder/port") == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_port_file_in_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "is not writable" in port_file_problem(FS, "port")


def test_a_path_from_a_configuration_file_is_reported_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('cold_dir = "missing"\n')
    ran = run_here("serve", "--config", "a.toml")
    assert ran.err.startswith("topicsd: a.toml: cold_dir='missing': no such directory")
