"""The README's example runs as it stands there, and the commands show what it says that they show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.command_run import PROJECT, environment, run_command

README = (PROJECT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## )", README, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def blocks(language: str, text: str) -> list[str]:
    """What stands between fences, of this language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [content for named, content in fenced if named == language]


def words(text: str) -> list[str]:
    """Lines without what differs from run to run: the time, the instance, and how many batches it took."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)
    text = re.sub(r"instance [0-9a-f]{32}", "INSTANCE", text)
    return [re.sub(r"[\d.]+", "N", " ".join(line.split())) for line in text.splitlines()]


@pytest.mark.slow
def test_the_example_runs_and_the_commands_show_what_it_wrote(tmp_path: Path) -> None:
    library = section("Using the log as a library")
    (example,) = blocks("python", library)
    (printed,) = blocks("", library)
    (tmp_path / "example.py").write_text(example)
    ran = subprocess.run(
        # Not `-X dev`: its event loop tells on stderr of each turn that took a tenth of a second.
        [sys.executable, "-W", "error", "example.py"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (ran.stdout, ran.stderr) == (printed, "")
    shown = blocks("console", section("Looking at a data directory"))
    assert len(shown) == 3
    for block in shown:
        line, expected = block.split("\n", 1)
        assert line.startswith("$ topicsd ")
        ran_command = run_command(*line.split()[2:], cwd=tmp_path)
        assert (ran_command.code, ran_command.err) == (0, "")
        assert words(ran_command.out) == words(expected)


def test_no_path_of_a_machine_is_in_the_readme() -> None:
    assert not re.search(r"/(home|root|tmp|work|Users)/", README)
