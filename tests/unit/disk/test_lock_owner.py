from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.harness.machine.memory_disk import MemoryDisk
from topicsd.disk.fs import Fs, RealFs

HOLD = (
    "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); print(); sys.stdin.read()"
)


def check_own_lock(fs: Fs, path: str) -> None:
    assert fs.lock_owner(path) is None, "there is no such file yet"
    fd = fs.lock(path)
    assert fs.lock_owner(path) is not None
    fs.close(fd)
    assert fs.lock_owner(path) is None


def test_the_disk_in_memory_answers_as_the_kernel_does(tmp_path: Path) -> None:
    check_own_lock(RealFs(), str(tmp_path / "LOCK"))
    check_own_lock(MemoryDisk(), "/LOCK")


def test_the_owner_is_the_process_that_holds_the_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "LOCK")
    fd = RealFs().lock(path)
    assert RealFs().lock_owner(path) == os.getpid()
    os.close(fd)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert RealFs().lock_owner(path) == holder.pid
        holder.communicate("")
    assert RealFs().lock_owner(path) is None
