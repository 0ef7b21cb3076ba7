"""A file system of a few MiB that tests fill and empty.

Promises: it exists inside the block and is gone after it. If it cannot be created (mounting needs privileges)
the test is skipped, with the reason.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PART_BYTES = 64 << 10


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def free_bytes(self) -> int:
        stats = os.statvfs(self.path)
        return stats.f_bavail * stats.f_frsize

    def fill(self, keep_bytes: int = 0) -> None:
        """Fill the free space except `keep_bytes`."""
        with self._filler.open("ab", buffering=0) as file:
            try:
                while (free := self.free_bytes() - keep_bytes) > 0:
                    file.write(bytes(min(PART_BYTES, free)))
            except OSError:
                pass

    def empty(self) -> None:
        self._filler.unlink()


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[SmallDisk]:
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", path],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {made.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)
