"""A wheel of the project serves from an environment with the runtime lock only."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from tests.harness.output.command_run import PROJECT
from tests.harness.server.whole_server import WholeServer

INSTALLED_BYTES_MAX = 100_000_000


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment that holds the runtime lock and the wheel only."""
    folder = tmp_path_factory.mktemp("wheel")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    wheel = build_wheel(folder)
    pip(python, "install", "--require-hashes", "-r", str(PROJECT / "requirements.lock"))
    pip(python, "install", "--no-deps", str(wheel))
    return folder / "venv"


def build_wheel(folder: Path) -> Path:
    """Build from a copy: a build leaves folders beside its sources."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = [one.removesuffix("*") for one in project["tool"]["setuptools"]["packages"]["find"]["include"]]
    source = folder / "source"
    source.mkdir()
    for name in packages:
        shutil.copytree(PROJECT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "pyspark_topicsd.py"):
        shutil.copy(PROJECT / name, source)
    pip(
        Path(sys.executable),
        *("wheel", "--no-deps", "--no-build-isolation", "-w", str(folder / "dist"), str(source)),
    )
    (wheel,) = (folder / "dist").glob("topicsd-*.whl")
    return wheel


def pip(python: Path, *arguments: str) -> None:
    done = subprocess.run([str(python), "-m", "pip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_an_installed_wheel_serves(environment: Path, tmp_path: Path) -> None:
    with WholeServer(tmp_path, python=str(environment / "bin" / "python"), cwd=tmp_path) as server:
        server.ask_json("POST", "/v0/topics/orders", {"records": [{"data": {"id": 17}}]})
        (record,) = server.ask_json("POST", "/v0/topics/orders/diff", {"from_seq": 0})["records"]
        assert record["data"] == {"id": 17}
        assert server.stop() == 0
    checked = subprocess.run(
        [str(environment / "bin" / "topicsd"), "verify", "data"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_the_runtime_is_small(environment: Path) -> None:
    installed = sum(path.stat().st_size for path in environment.rglob("*") if path.is_file())
    assert installed < INSTALLED_BYTES_MAX
    assert not list(environment.rglob("site-packages/pyspark"))
