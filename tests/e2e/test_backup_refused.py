"""A backup to a store that is full, not writable, or does not answer ends or speaks within seconds."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.harness.machine.small_disk import SmallDisk, small_disk
from tests.harness.output.command_run import CommandResult, command_line, environment, run_here
from tests.harness.shard.one_shard import RealShard, record

pytestmark = pytest.mark.slow

DISK_BYTES = 4 << 20
RECORD = record("z" * 10_000)
# Far below the two minutes for which a store that does not answer is asked.
SECONDS_MAX = 30.0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a directory of more than a small disk holds."""
    one = RealShard(tmp_path / "data")
    for _ in range(6):
        one.append("t", *[RECORD] * 200)
    one.checkpoint()
    one.close()
    return tmp_path / "data"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as small:
        yield small


def created(data: Path, store: object) -> CommandResult:
    started = time.monotonic()
    ran = run_here("backup", "create", data, "--to", store)
    assert time.monotonic() - started < SECONDS_MAX
    return ran


def remount(disk: SmallDisk, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", disk.path], check=True)


def test_a_full_disk_ends_the_backup_at_once_and_the_next_one_continues(data: Path, disk: SmallDisk) -> None:
    refused = created(data, disk.path)
    assert (refused.code, refused.out) == (2, "")
    sentence = (
        rf"topicsd: the store is full: {disk.path}: No space left on device: [0-9,]+ bytes needed for "
        r"an object, [0-9,]+ bytes free; free some space and run the command again\n"
    )
    assert re.fullmatch(sentence, refused.err), refused.err
    listed = run_here("backup", "list", disk.path)
    assert (listed.code, listed.out) == (0, "no backups\n")
    assert run_here("backup", "verify", disk.path).code == 2
    remount(disk, f"size={8 * DISK_BYTES}")
    assert created(data, disk.path).code == 0
    checked = run_here("backup", "verify", disk.path)
    assert (checked.code, checked.out) == (0, "all is well: 1 backup\n")


def test_a_disk_without_any_room_ends_the_backup_at_once(data: Path, disk: SmallDisk) -> None:
    disk.fill()
    refused = created(data, disk.path)
    assert (refused.code, refused.out) == (2, "")
    assert "the store is full" in refused.err


def test_a_read_only_folder_ends_the_backup_at_once(data: Path, disk: SmallDisk) -> None:
    remount(disk, "ro")
    refused = created(data, disk.path)
    assert (refused.code, refused.out) == (2, "")
    assert "Read-only file system" in refused.err
    assert str(disk.path) in refused.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_another_user_ends_the_backup_at_once(data: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o500)
    refused = created(data, tmp_path / "store")
    assert (refused.code, refused.out) == (2, "")
    assert "Permission denied" in refused.err


def test_a_store_that_does_not_answer_is_named_within_seconds(data: Path) -> None:
    with closing(socket.socket()) as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        url = f"s3://bucket/backups?endpoint=http://127.0.0.1:{port}&region=r&skip_signature=true"
        with subprocess.Popen(
            command_line("backup", "create", data, "--to", url),
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            started = time.monotonic()
            lines = [process.stderr.readline(), process.stderr.readline()]
            seconds = time.monotonic() - started
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
            assert process.wait(SECONDS_MAX) == 130
    for line in lines:
        assert re.match(
            r"store: not answering, attempt \d+, giving up in \d+ s: s3://bucket/backups/", line
        ), line
    assert seconds < SECONDS_MAX
    assert "stopped; run the command again to continue" in rest
