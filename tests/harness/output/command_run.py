"""The command `topicsd` as a user runs it, and a fingerprint of a directory.

Promises: `run_command` starts another process, `run_here` runs in this one and is fast; both return the exit
code and the output. Only the arguments name the directory of the command.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from topicsd.__main__ import main

PROJECT = Path(__file__).parents[3]


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


def command_line(*arguments: object) -> list[str]:
    return [sys.executable, "-X", "dev", "-W", "error", "-m", "topicsd", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(PROJECT)}


def run_command(*arguments: object, cwd: Path | None = None) -> CommandResult:
    done = subprocess.run(
        command_line(*arguments), cwd=cwd, env=environment(), capture_output=True, text=True, timeout=60
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


def run_here(*arguments: object) -> CommandResult:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:  # Raised by argparse.
            code = error.code if isinstance(error.code, int) else 1
    return CommandResult(code, out.getvalue(), err.getvalue())


def fingerprint(root: Path) -> dict[str, tuple[object, ...]]:
    """Return everything that a change of the tree would alter, by path."""
    entries: dict[str, tuple[object, ...]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        stat = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        times = (stat.st_mtime_ns, stat.st_ctime_ns)
        entries[str(path)] = (stat.st_ino, stat.st_mode, stat.st_size, *times, content)
    return entries
