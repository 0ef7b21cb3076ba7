from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (PROJECT / name).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads(read("pyproject.toml"))["project"]
    return table


@pytest.fixture(scope="module")
def servers() -> list[str]:
    requirements: list[str] = tomllib.loads(read("pyproject.toml"))["dependency-groups"]["stack"]
    return requirements


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_newest_heading_of_the_changelog_is_unreleased_or_the_version(project: dict[str, Any]) -> None:
    headings = re.findall(r"^## \[?([^\]\s]+)", read("CHANGELOG.md"), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert headings[: len(headings) - len(released)] in ([], ["Unreleased"])
    assert released[:1] in ([], [project["version"]])


def locked(name: str) -> dict[str, str]:
    """Return the packages of a lock file with their versions."""
    pins = re.findall(r"^([\w.-]+)==([^ ]+)", read(name), re.MULTILINE)
    return {normalised(package): version for package, version in pins}


def packages(requirements: list[str]) -> set[str]:
    return {normalised(re.split(r"[<>=!~\[ ]", one)[0]) for one in requirements}


def test_each_lock_lists_the_declared_dependencies(project: dict[str, Any], servers: list[str]) -> None:
    extras = project["optional-dependencies"]
    assert packages([*project["dependencies"], *extras["build"]]) <= locked("requirements.lock").keys()
    assert packages([*project["dependencies"], *extras["dev"]]) <= locked("requirements-dev.lock").keys()
    assert packages(servers) <= locked("requirements-stack.lock").keys()


def test_the_development_lock_holds_the_runtime_lock_at_the_same_versions() -> None:
    assert locked("requirements.lock").items() <= locked("requirements-dev.lock").items()


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock", "requirements-stack.lock"])
def test_a_lock_has_hashes_and_no_address(name: str) -> None:
    lock = read(name)
    entries = re.split(r"^(?=[\w.-]+==)", lock, flags=re.MULTILINE)[1:]
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries)
    assert not re.search(r"https?:|index-url|find-links|^-|/", lock, re.MULTILINE)


def test_every_dependency_is_listed_with_a_reason(project: dict[str, Any], servers: list[str]) -> None:
    extras = project["optional-dependencies"].values()
    everything = [*project["dependencies"], *(one for extra in extras for one in extra), *servers]
    declared = packages(everything)
    rows = re.findall(
        r"^\| `([\w.-]+)` \| \S.* \| \S.* \|$", read("docs/develop/dependencies.md"), re.MULTILINE
    )
    assert {normalised(row) for row in rows} == declared


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # Without the variables of an outer make: `make PYTHON=... test` must test the same.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *arguments], cwd=PROJECT, env=environ, capture_output=True, text=True)


def test_make_help_lists_the_targets() -> None:
    listed = make().stdout
    targets = re.findall(r"^  make ([a-z-]+) +\w", listed, re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)$", read("Makefile"), re.MULTILINE)
    assert phony is not None
    assert targets == phony[1].split()


def test_an_old_python_is_refused_with_one_error_line(tmp_path: Path) -> None:
    old = tmp_path / "python-of-old"
    old.write_text('#!/bin/sh\ntest "$1" = -V && echo Python 3.10.1\nexit 1\n')
    old.chmod(0o755)
    for command in (str(old), "no-such-python"):
        made = make("install", f"PYTHON={command}", f"VENV={tmp_path / 'venv'}")
        assert made.returncode != 0
        assert "topicsd needs Python 3.11 or newer" in made.stderr
        assert not (tmp_path / "venv").exists()
