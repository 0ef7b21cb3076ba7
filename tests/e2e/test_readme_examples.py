"""What the README shows of the server comes true: its commands are taken out of it and run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.harness.command_run import PROJECT
from tests.harness.served import served

# Refusals fail the script, and each answer ends its line.
CURL = 'set -e\ncurl() { command curl --silent --show-error --fail-with-body "$@"; echo; }\n'


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
    assert [record["$seq"] for record in read["records"]] == [1, 2]
    assert b'"total":9.90' in ran.stdout.encode()
    assert read["next_from_seq"] == 2
    assert state["head_seq"] == 2
    assert (deleted["deleted"], deleted["earliest_seq"]) == (1, 2)
    assert gone["deleted"] is True
