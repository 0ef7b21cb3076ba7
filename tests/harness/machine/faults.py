"""Faults of the fake disk: which call fails, and how, as planned before a script runs.

Promises: calls are counted from the moment a fault is armed, by name or over all mutating calls, once or
forever, so that a test can sweep `nth` until no fault fires. Power cuts and kills are BaseExceptions, so that
no `except Exception` or `except OSError` in the code under test can survive them.
"""

from __future__ import annotations

import errno as errors
from dataclasses import dataclass, field
from typing import Self

MUTATING_CALLS = (
    "create",
    "open_write",
    "pwrite",
    "allocate",
    "truncate",
    "sync_data",
    "sync_dir",
    "rename",
    "link",
    "unlink",
    "make_dir",
    "remove_dir",
    "drop_cache",
    "lock",
)

READING_CALLS = ("open_read", "close", "pread", "list_dir", "stat", "fstat", "free_bytes", "boot_id")


class MachineGoneError(BaseException):
    """The machine or process is gone: every further call of the disk raises."""

    def again(self) -> Self:
        """Return a new exception of the same kind, with its own traceback."""
        return type(self)(*self.args)


class PowerCut(MachineGoneError):
    """The machine lost its power."""


class ProcessKilled(MachineGoneError):
    """The process was killed with SIGKILL."""


@dataclass
class Fault:
    """One way to fail.

    `seen` counts the calls that match, `fired` the calls that it failed, and `on` lists the file of each
    matching call with its other arguments.
    """

    call: str | None = None
    nth: int = 1
    error: int = errors.EIO
    forever: bool = False
    short: bool = False
    short_bytes: int | None = None
    seed: int | None = None
    seen: int = 0
    fired: int = 0
    on: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.nth >= 1, "the first call is number 1"
        assert self.call is None or self.call in MUTATING_CALLS + READING_CALLS, f"no call {self.call}"
        assert not self.short or self.call in (None, "pwrite"), "only a write can be short"

    def hits(self, name: str, mutating: bool) -> bool:
        call = "pwrite" if self.short else self.call
        if not (mutating if call is None else name == call):
            return False
        self.seen += 1
        hit = self.seen >= self.nth if self.forever else self.seen == self.nth
        self.fired += hit
        return hit
