"""What is around a server changes nothing: its current directory, a copy of its data, /dev/shm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.raw_client import RawClient
from tests.harness.served import served
from tests.harness.whole_server import name_on

pytestmark = pytest.mark.slow


def append(port: int, topic: str) -> int:
    body = json.dumps({"records": [{"data": 1}]}).encode()
    with RawClient(port) as client:
        return client.ask("POST", f"/v0/topics/{topic}", body).status


def append_to_each_shard(port: int) -> None:
    for shard in range(2):
        assert append(port, name_on(shard, 2, "t")) in (200, 201)


def test_code_in_the_current_directory_is_not_imported(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    for package in ("shared", "router", "topicsd_data"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text('print("CODE FROM THE CURRENT DIRECTORY", flush=True)')
    for module in ("xxhash", "msgspec", "uvloop"):
        (folder / f"{module}.py").write_text('raise SystemExit("CODE FROM THE CURRENT DIRECTORY")')
    with served(tmp_path, "--fronts=2", cwd=folder) as one:
        append_to_each_shard(one.port)
        assert one.stop() == 0
    assert "CURRENT DIRECTORY" not in one.log.read_text()


def test_a_copy_of_a_data_directory_is_served_beside_its_original(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    with served(tmp_path / "first") as first:
        append_to_each_shard(first.port)
        subprocess.run(["cp", "-a", tmp_path / "first" / "data", tmp_path / "second" / "data"], check=True)
        with served(tmp_path / "second") as second:
            for port in (second.port, first.port):
                append_to_each_shard(port)
                # Across the shards, over the sockets between the processes.
                with RawClient(port) as client:
                    listed = client.ask("GET", "/v0/topics").json["topics"]
                    assert [one["count"] for one in listed] == [2, 2]
            assert second.stop() == 0
        append_to_each_shard(first.port)
        assert first.stop() == 0


@pytest.mark.parametrize("how", ["umount -l /dev/shm", "mount -t tmpfs -o ro,size=4k none /dev/shm"])
def test_shared_memory_needs_no_file_system(tmp_path: Path, how: str) -> None:
    before = ("unshare", "--mount", "sh", "-c", f'{how} && exec "$@"', "sh")
    if shutil.which("unshare") is None or subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace can be made here")
    with served(tmp_path, before=before) as one:
        append_to_each_shard(one.port)
        assert one.stop() == 0
