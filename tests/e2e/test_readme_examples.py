"""What the README shows of the server comes true: its commands are taken out of it and run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.harness.command_run import PROJECT
from tests.harness.served import served

# Refusals fail the script.
CURL = 'set -e\ncurl() { command curl --silent --show-error --fail-with-body "$@"; }\n'


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_first_steps_work_as_they_are_written(tmp_path: Path) -> None:
    blocks = re.findall(r"^```\n(.*?)^```$", (PROJECT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (steps,) = (block for block in blocks if block.startswith("topics=http"))
    with served(tmp_path) as server:
        script = CURL + steps.replace("127.0.0.1:4000", f"127.0.0.1:{server.port}")
        ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    put, appended, read, state, deleted, gone = map(msgspec.json.decode, ran.stdout.splitlines())
    assert put["created"] is True
    assert put["config"]["durability"] == "fsync"
    assert (appended["seqs"], appended["created"]) == ([1, 2], False)
    assert [(record["$seq"], record.get("$tag")) for record in read["records"]] == [(1, "new"), (2, None)]
    assert b'"total":9.90' in ran.stdout.encode()
    assert read["next_from_seq"] == 2
    assert state["head_seq"] == 2
    assert (deleted["deleted"], deleted["earliest_seq"]) == (1, 2)
    assert gone["deleted"] is True


def _without_chance(text: str) -> str:
    """Times differ from run to run, and epochs: they count what was written to the log in batches."""
    return re.sub(r'"(\$ts|server_total_ms|epoch)":[\d.]+', r'"\1":N', text).rstrip()


def _queue_steps(tmp_path: Path, title: str) -> list[Any]:
    """What the commands under a heading about queues are answered."""
    section = (PROJECT / "README.md").read_text().partition(f"\n{title}\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[0]
    with served(tmp_path) as server:
        settings = f"topics=http://127.0.0.1:{server.port}/v0/topics\njson='content-type: application/json'\n"
        script = CURL + settings + steps
        ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    return [*map(msgspec.json.decode, ran.stdout.splitlines())]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_jobs_of_the_readme_are_done_and_given_back(tmp_path: Path) -> None:
    put, _, claimed, acked, nacked = _queue_steps(tmp_path, "## Queues")
    assert (put["config"]["type"], put["config"]["dead_letter"]) == ("queue", "mails-dead")
    assert [job["$seq"] for job in claimed["claimed"]] == [1, 2]
    assert (acked["acked"], nacked["nacked"], nacked["ready"], nacked["in_flight"]) == (1, 1, 0, 0)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_route_of_the_readme_copies_what_it_is_to_copy(tmp_path: Path) -> None:
    section = (PROJECT / "README.md").read_text().partition("\n## Forwards\n")[2].partition("\n## ")[0]
    (steps,) = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    with served(tmp_path) as server:
        script = CURL + steps.replace("127.0.0.1:4000", f"127.0.0.1:{server.port}")
        ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    put, _, read, told, listed, gone = map(msgspec.json.decode, ran.stdout.splitlines())
    fields = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|\s*(?:`(.*?)`)?\s*\|", section, re.MULTILINE)
    defaults = {name: value for names, value in fields for name in re.findall(r"`(\w+)`", names)}
    answered = {
        name: value for name, value in put.items() if name not in ("router", "created", "performance")
    }
    assert set(answered) == set(defaults)
    for name, value in defaults.items():
        assert not value or name == "filter" or answered[name] == msgspec.json.decode(value), name
    assert [(one["$seq"], one["data"], one["$tag"]) for one in read["records"]] == [
        (1, {"id": 17}, "paid.eu")
    ]
    assert (told["router"], told["forwarded_total"]) == ("orders>invoices", 1)
    assert [one["router"] for one in listed["routers"]] == ["orders>invoices"]
    assert gone["deleted"] is True


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_jobs_of_the_readme_that_wait_do_so(tmp_path: Path) -> None:
    put, _, _, claimed, *explained, by_seq, by_tag, _, paused, _ = _queue_steps(
        tmp_path, "### Jobs that wait"
    )
    assert put["config"]["order_by"] == "tag"
    assert [job["$seq"] for job in claimed["claimed"]] == [1, 3]
    assert [one["state"] for one in explained] == ["blocked", "delayed"]
    assert explained[0]["blocked_by"] == 1
    assert (by_seq["deleted"], by_tag["deleted"], paused["count"]) == (1, 0, 0)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_a_watch_says_what_the_readme_shows(tmp_path: Path) -> None:
    readme = (PROJECT / "README.md").read_text()
    section = readme.partition("\n## Watching\n")[2].partition("\n## ")[0]
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    (steps,) = (text for language, text in fenced if not language)
    shown = [text.removeprefix("$ ").partition("\n") for language, text in fenced if language == "console"]
    assert [command.split()[0] for command, _, _ in shown] == ["curl"] * 3
    settings = "\n".join(steps.splitlines()[:2])
    wid_there = msgspec.json.decode(shown[0][2])["wid"]
    wid_here = wid_there
    # Topics of several shards come in an order of their own.
    with served(tmp_path, "--shards=1") as server:

        def bash(script: str) -> str:
            script = script.replace("127.0.0.1:4000", f"127.0.0.1:{server.port}")
            ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
            assert ran.stderr == ""
            return ran.stdout

        bash(CURL + steps)
        for command, _, expected in shown:
            # A stream does not end; all that is there is said at once.
            arguments = command.removeprefix("curl ").replace(wid_there, wid_here)
            told = bash(f"{settings}\ncurl --silent --max-time 3 {arguments}")
            if told.startswith("{"):
                wid_here = msgspec.json.decode(told)["wid"]
            assert _without_chance(told) == _without_chance(expected.replace(wid_there, wid_here)), command


@pytest.mark.slow
def test_the_example_of_a_websocket_prints_what_it_says(tmp_path: Path) -> None:
    readme = (PROJECT / "README.md").read_text()
    found = re.search(
        r"^```python\n(import json\n.*?create_connection.*?)^```\n\n```\n(.*?)^```", readme, re.M | re.S
    )
    assert found is not None
    with served(tmp_path, "--shards=2") as server:
        example = found[1].replace("127.0.0.1:4000", f"127.0.0.1:{server.port}")
        ran = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == (found[2], "")
