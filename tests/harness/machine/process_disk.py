"""The disk of a machine as one process of several uses it: the process can be killed at any call.

Promises: `kill_after(n)` allows n more calls that change something. The next one, and all after it, raise
`MachineGoneError` and change nothing. What the process wrote before stays, as the kernel keeps it; its open
files and locks are released by `release`. The other processes of the machine continue.
"""

from __future__ import annotations

from typing import Any

from tests.harness.machine.faults import READING_CALLS, MachineGoneError
from tests.harness.machine.memory_disk import MemoryDisk


class ProcessDisk:
    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self._left: int | None = None
        self._fds: set[int] = set()
        self.is_dead = False
        self.calls = 0
        """Calls that changed something."""

    def kill_after(self, calls: int) -> None:
        self._left = calls

    def release(self) -> None:
        """End the process: close what it has open."""
        self.is_dead = True
        for fd in self._fds:
            self._disk.close(fd)
        self._fds.clear()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._disk, name)
        return call if not callable(call) else lambda *arguments: self._call(name, call, arguments)

    def _call(self, name: str, call: Any, arguments: tuple[Any, ...]) -> Any:
        if self.is_dead:
            if name == "close":
                return None
            raise MachineGoneError("this process was killed")
        if name not in READING_CALLS:
            if self._left is not None and not self._left:
                self.is_dead = True
                raise MachineGoneError("this process was killed")
            self._left = None if self._left is None else self._left - 1
            self.calls += 1
        result = call(*arguments)
        if name in ("create", "open_write", "open_read", "lock"):
            self._fds.add(result)
        elif name == "close":
            self._fds.discard(arguments[0])
        return result
