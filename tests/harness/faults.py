"""Which call of the disk fails, and how: the plan that a test makes before it runs its script.

Promises: faults are counted from the moment they are armed, by name or over all mutating calls, once or for
ever, so that a test can sweep `nth` until nothing fires any more. How the power goes and how a process is
killed are BaseExceptions: no `except Exception` and no `except OSError` of the code under test can live on.
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
    """This disk answers nobody any more."""

    def again(self) -> Self:
        """The same news for one more caller, with a traceback of its own."""
        return type(self)(*self.args)


class PowerCut(MachineGoneError):
    """The machine lost its power."""


class ProcessKilled(MachineGoneError):
    """The process got SIGKILL."""


@dataclass
class Fault:
    """One way to fail. `seen` counts the calls that it is about, `fired` those that it failed; `on` says of
    what file each of them was, with its other arguments."""

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
