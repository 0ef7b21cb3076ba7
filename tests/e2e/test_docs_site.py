"""The documentation builds as a site with search, without network access."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.output.command_run import PROJECT

# No proxy and no resolver: a build that contacts another host fails.
NO_NETWORK = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}


# Not `--quiet`: it does not count warnings, and a broken link would pass.
def build(project: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=project,
        env={**os.environ, **NO_NETWORK, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the sources of the site."""
    shutil.copy(PROJECT / "mkdocs.yml", tmp_path)
    shutil.copytree(PROJECT / "docs", tmp_path / "docs")
    return tmp_path


@pytest.mark.slow
def test_the_site_builds_with_search_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = build(PROJECT, tmp_path)
    assert built.returncode == 0, built.stderr
    pages = [page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")]
    assert len(pages) > len(list((PROJECT / "docs").rglob("*.md")))
    loaded = re.compile(r'<(?:script|img|iframe)[^>]* src="(?:https?:)?//|<link[^>]* href="(?:https?:)?//')
    assert [match[0] for page in pages for match in loaded.finditer(page)] == []
    index = json.loads((tmp_path / "search" / "search_index.json").read_text(encoding="utf-8"))
    assert any("tombstone" in entry["text"] for entry in index["docs"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("See [this](gone.md).", "gone.md"),
        ("See [this](api/read.md#no-such-heading).", "no-such-heading"),
        ("See [this](/absolute.md).", "absolute.md"),
    ],
)
def test_a_broken_link_ends_the_build(project: Path, text: str, complaint: str) -> None:
    (project / "docs" / "index.md").write_text(text)
    built = build(project, project / "site")
    assert built.returncode != 0
    assert complaint in built.stderr


@pytest.mark.slow
def test_a_page_that_the_navigation_leaves_out_ends_the_build(project: Path) -> None:
    (project / "docs" / "lost.md").write_text("# Lost\n")
    built = build(project, project / "site")
    assert built.returncode != 0
    assert "lost.md" in built.stderr
