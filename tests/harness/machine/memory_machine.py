"""The machine around the in-memory disk: descriptors, boots, armed faults, and endings.

Promises: every call of `Fs` passes one of two gates. `mutating` counts it and applies what was armed for it
(a fault, a power cut, a SIGKILL), or runs it; `looking` does not count. The endings (`after_power_cut`,
`after_process_kill`, `after_reboot`, `copied`) each make a new disk and leave this one unchanged, so that one
disk can be the template of many outcomes.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from random import Random
from typing import Any, Concatenate, NoReturn, ParamSpec, Self, TypeVar, cast

from tests.harness.machine.faults import Fault, MachineGoneError, PowerCut, ProcessKilled
from tests.harness.machine.memory_file import MemoryFile
from tests.harness.machine.memory_names import ROOT, Tree
from tests.harness.machine.memory_tree import MemoryTree
from tests.harness.machine.power_cut import Outcome

M = TypeVar("M", bound="MemoryMachine")
P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[Concatenate[M, P], R]


def posix_error(code: int, path: str = "") -> OSError:
    """Return an OSError of the subclass that belongs to the errno."""
    return OSError(code, os.strerror(code), path) if path else OSError(code, os.strerror(code))


def mutating(method: Method[M, P, R]) -> Method[M, P, R]:
    name = method.__name__
    plain = cast(Callable[..., Any], method)

    @functools.wraps(method)
    def call(self: MemoryMachine, *args: Any, **kwargs: Any) -> Any:
        if self._gone is not None:
            raise self._gone.again()
        self.calls += 1
        if self.trace is not None:
            self.trace.append((name, self._summary(args)))
        if self.calls == self._end_call:
            self._end(name, plain, args, kwargs)
        if self._faults:
            fault = self._fault(name, True)
            if fault is not None:
                fault.on.append(self._summary(args))
                return self._suffer(fault, name, plain, args)
        return plain(self, *args, **kwargs)

    return cast(Method[M, P, R], call)


def looking(method: Method[M, P, R]) -> Method[M, P, R]:
    name = method.__name__
    plain = cast(Callable[..., Any], method)

    @functools.wraps(method)
    def call(self: MemoryMachine, *args: Any, **kwargs: Any) -> Any:
        if self._gone is not None:
            if name == "close":
                return None  # Called by cleanup of forgotten objects, long after the end.
            raise self._gone.again()
        if self._faults:
            fault = self._fault(name, False)
            if fault is not None:
                fault.on.append(self._summary(args))
                raise posix_error(fault.error)
        return plain(self, *args, **kwargs)

    return cast(Method[M, P, R], call)


class OpenFile:
    """An open descriptor."""

    __slots__ = ("file", "path", "writable")

    def __init__(self, file: MemoryFile, path: str, writable: bool) -> None:
        self.file = file
        self.path = path
        self.writable = writable


class MemoryMachine(MemoryTree):
    def __init__(self, *, space_bytes: int | None = None, traced: bool = False) -> None:
        super().__init__(space_bytes)
        # Mutating calls so far, including the one that failed or was cut; also the stamp of their effects.
        self.calls = 0
        self.trace: list[tuple[str, str]] | None = [] if traced else None
        self._boot = 1
        self.open_files: dict[int, OpenFile] = {}
        self._fd_next = 1000
        self._locks: dict[int, int] = {}
        self._faults: list[Fault] = []
        self._gone: MachineGoneError | None = None
        self._end_call = -1
        self._ends_with: type[MachineGoneError] = PowerCut
        self._write_torn = False

    # Arming of faults and endings.

    def cut_power_after(self, n: int) -> None:
        """Allow n more mutating calls; the one after them is in flight when the power fails."""
        self._end_call, self._ends_with = self.calls + n + 1, PowerCut

    def kill_process_after(self, n: int, *, torn: bool = False) -> None:
        """Allow n more mutating calls; the one after them is not done (`torn`: a write is half done)."""
        self._end_call, self._ends_with, self._write_torn = self.calls + n + 1, ProcessKilled, torn

    def fail(
        self,
        call: str | None = None,
        nth: int = 1,
        error: int = errno.EIO,
        *,
        forever: bool = False,
        short: bool = False,
        short_bytes: int | None = None,
        seed: int | None = None,
    ) -> Fault:
        """Arm a fault for the n-th call from now on, of that name or of any mutating call.

        `short` makes it a pwrite that takes only `short_bytes` (else half). `seed` decides which sectors a
        failed sync_data wrote anyway; without it, none. `Fault.fired` counts how often it was applied.
        """
        fault = Fault(call, nth, error, forever, short, short_bytes, seed)
        self._faults.append(fault)
        return fault

    def clear_faults(self) -> None:
        self._faults.clear()

    @property
    def is_gone(self) -> bool:
        return self._gone is not None

    # Endings. Each makes a new disk and leaves this one unchanged.

    def after_power_cut(self, rng: Random) -> Self:
        """Return the disk after the machine restarted: survivors count as synced, inodes are kept."""
        outcome = Outcome(rng, self.calls)
        twin = self._machine(self._boot + 1, self.inode_next)
        twin.adopt(
            self.names.survivors(outcome.keeps_name), lambda inode: outcome.survivor(self.files[inode])
        )
        return twin

    def after_process_kill(self) -> Self:
        """Return the disk for the next process: page cache kept, no descriptors, no locks."""
        twin = self._machine(self._boot, self.inode_next)
        twin.calls = self.calls
        twin.names = self.names.copied()
        twin.files = {inode: file.copied() for inode, file in self.files.items()}
        twin.used_bytes = sum(file.size for file in twin.files.values() if file.links)
        return twin

    def after_reboot(self) -> Self:
        """Return the disk after a planned reboot: dirty data was written, failed syncs stay lost."""

        def synced(inode: int) -> MemoryFile:
            file = self.files[inode].copied()
            file.sync()
            return MemoryFile(inode, file.media, file.size)

        twin = self._machine(self._boot + 1, self.inode_next)
        twin.adopt(self.names.seen, synced)
        return twin

    def copied(self) -> Self:
        """Return a copy as by `cp -r`: what reads see, in new inodes, all of it synced."""
        offset = self.inode_next
        tree: Tree = {
            directory + offset * (directory != ROOT): {name: inode + offset for name, inode in names.items()}
            for directory, names in self.names.seen.items()
        }

        def copy(inode: int) -> MemoryFile:
            original = self.files[inode - offset]
            return MemoryFile(inode, original.cache, original.size)

        twin = self._machine(self._boot, offset * 2)
        twin.adopt(tree, copy)
        return twin

    def _machine(self, boot: int, inode_next: int) -> Self:
        twin = type(self)(space_bytes=self.space_bytes, traced=self.trace is not None)
        twin._boot, twin.inode_next = boot, inode_next
        # A descriptor of the old machine is invalid on the new one.
        twin._fd_next = self._fd_next
        return twin

    # Implementation of the decorators.

    def _fault(self, name: str, mutating: bool) -> Fault | None:
        # Every armed fault counts the call, also when another one was applied already.
        hits = [fault for fault in self._faults if fault.hits(name, mutating)]
        return hits[0] if hits else None

    def _suffer(self, fault: Fault, name: str, plain: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if fault.short:
            fd, data, offset = args
            taken = len(data) // 2 if fault.short_bytes is None else min(fault.short_bytes, len(data))
            return plain(self, fd, data[:taken], offset)
        if name == "sync_data":
            rng = Random(fault.seed)
            share = 0.0 if fault.seed is None else rng.choice((0.0, 0.5, 0.9))
            self._of(args[0]).file.fail_sync(lambda _: rng.random() < share)
        raise posix_error(fault.error)

    def _end(
        self, name: str, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> NoReturn:
        """Carry out the call during which everything ends, in the image the outcome is made of."""
        self._gone = self._ends_with(f"in call {self.calls}: {name} {self._summary(args)}")
        try:
            if self._ends_with is PowerCut:
                # A sync in flight guarantees nothing; what it may have written is pending anyway.
                if name not in ("sync_data", "sync_dir", "drop_cache"):
                    plain(self, *args, **kwargs)
            elif name == "pwrite" and self._write_torn:
                plain(self, args[0], args[1][: len(args[1]) // 2], args[2])
        except OSError:
            pass
        raise self._gone.again()

    def _summary(self, args: tuple[Any, ...]) -> str:
        words = []
        for index, arg in enumerate(args):
            if index == 0 and isinstance(arg, int):
                words.append(self.open_files[arg].path if arg in self.open_files else f"fd {arg}")
            elif isinstance(arg, bytes | bytearray | memoryview):
                words.append(f"{len(arg)} bytes")
            else:
                words.append(str(arg))
        return " ".join(words)

    def _of(self, fd: int, *, writing: bool = False) -> OpenFile:
        descriptor = self.open_files.get(fd)
        if descriptor is None or (writing and not descriptor.writable):
            raise posix_error(errno.EBADF)
        return descriptor

    def _opened(self, file: MemoryFile, path: str, *, writable: bool) -> int:
        # Numbers are never reused, so that a descriptor used after its close is an error here.
        self._fd_next += 1
        self.open_files[self._fd_next] = OpenFile(file, path, writable)
        file.opens += 1
        return self._fd_next
