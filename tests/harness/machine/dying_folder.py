"""A folder of files whose owner dies before its n-th change, or after it.

Promises: it has the interface of `HadoopFolder`, over a directory, one change after the other. A rename of a
file and the end of a write are one step each, as they are on a disk.
"""

from __future__ import annotations

import shutil
from pathlib import Path


class ProcessDeath(BaseException):
    """The death of the process: later steps do not happen."""


class DyingFolder:
    def __init__(self, root: Path, dies_at: int = -1) -> None:
        self.root = root
        self.uri = str(root)
        self.local_path: str | None = str(root)
        self.change_count = 0
        self._dies_at = dies_at

    def _change(self) -> None:
        if self.change_count == self._dies_at:
            raise ProcessDeath
        self.change_count += 1

    def uri_of(self, name: str) -> str:
        return str(self.root / name)

    def exists(self, name: str) -> bool:
        return (self.root / name).exists()

    def names(self, name: str) -> list[str]:
        return sorted(path.name for path in (self.root / name).iterdir()) if self.exists(name) else []

    def files(self, name: str) -> list[tuple[str, int]]:
        top = self.root / name
        paths = [path for path in top.rglob("*") if path.is_file()]
        return sorted((path.relative_to(top).as_posix(), path.stat().st_size) for path in paths)

    def read(self, name: str) -> bytes:
        return (self.root / name).read_bytes()

    def make(self, name: str) -> None:
        (self.root / name).mkdir(parents=True, exist_ok=True)

    def write_new(self, name: str, data: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(path.name + ".new")
        # After a death in mid-write, half of the data has the temporary name.
        beside.write_bytes(data[: len(data) // 2])
        self._change()
        beside.write_bytes(data)
        self._change()
        beside.rename(path)
        self._change()

    def rename(self, name: str, target: str) -> None:
        self._change()
        path = self.root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).replace(path)
        self._change()

    def remove(self, name: str) -> None:
        path = self.root / name
        if path.is_file():
            self._change()
            path.unlink()
        elif path.exists():
            for inner in sorted(path.rglob("*"), reverse=True):
                if inner.is_file():
                    self._change()
                    inner.unlink()
            shutil.rmtree(path)
        self._change()
