"""The environment of a server has no effect or is named: current directory, data copies, /dev/shm."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.output.command_run import command_line, environment
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow


def append_to_each_shard(server: WholeServer) -> None:
    for shard in range(2):
        server.ask_json("POST", f"/v0/topics/{server.topic_of(shard, 't')}", {"records": [{"data": 1}]})


def test_code_in_the_current_directory_is_not_imported(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    for package in ("shared", "router", "topicsd_data"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text('print("CODE FROM THE CURRENT DIRECTORY", flush=True)')
    for module in ("xxhash", "msgspec", "uvloop"):
        (folder / f"{module}.py").write_text('raise SystemExit("CODE FROM THE CURRENT DIRECTORY")')
    with WholeServer(tmp_path, "--fronts=2", cwd=folder) as one:
        append_to_each_shard(one)
        assert one.stop() == 0
    assert "CURRENT DIRECTORY" not in one.log.read_text()


def test_a_copy_of_a_data_directory_is_served_beside_its_original(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with WholeServer(tmp_path / "first") as first:
        append_to_each_shard(first)
        subprocess.run(["cp", "-a", tmp_path / "first" / "data", tmp_path / "second" / "data"], check=True)
        with WholeServer(tmp_path / "second") as second:
            for server in (second, first):
                append_to_each_shard(server)
                # Across the shards, over the links between the processes.
                listed = server.ask_json("GET", "/v0/topics")["topics"]
                assert [one["count"] for one in listed] == [2, 2]
            assert second.stop() == 0
        append_to_each_shard(first)
        assert first.stop() == 0


BARE_DEV = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9"


@pytest.mark.parametrize(
    ("how", "what"),
    [
        (BARE_DEV, r"is missing; .*: mount a tmpfs \(docker: not --ipc=none\)"),
        ("mount -t tmpfs -o ro none /dev/shm", "is read-only; .*: mount it writable"),
        (
            "mount -t tmpfs -o size=4k none /dev/shm",
            r"is full; .*: make it larger \(docker",
        ),
    ],
)
def test_missing_shared_memory_is_named(tmp_path: Path, how: str, what: str) -> None:
    before = ("unshare", "--mount", "sh", "-c", f'{how} && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run(["unshare", "--mount", "true"]).returncode:
        pytest.skip("no mount namespace can be made here")
    serve = [*before, *command_line("serve", "--port=0", f"--data-dir={tmp_path / 'data'}")]
    ran = subprocess.run(serve, env=environment(), capture_output=True, text=True, timeout=60)
    assert ran.returncode == 1
    assert re.search(f"shared memory: /dev/shm {what}", ran.stderr), ran.stderr
    assert "Traceback" not in ran.stderr
