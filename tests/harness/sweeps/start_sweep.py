"""A sweep that ends a start, or fails one of its disk calls, at each call; then the shard starts again.

Promises: the start follows a script that was ended at some call by a power cut, a SIGKILL, a failed sync or a
clean stop, so that every step of recovery happens somewhere: torn tails, later files, lost ranges, copies of
files that could not be synced. However a start ends, the next one shows what the book allows, and accepts
writes.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Literal

from tests.harness.books.shard_book import ShardBook
from tests.harness.machine.faults import Fault, MachineGoneError
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_run import Manner, ShardRun
from tests.harness.sweeps.attempts import attempt
from tests.harness.sweeps.crash_sweep import CUTS, KILLS, Played, recover_and_continue
from tests.harness.sweeps.fault_sweep import FAULTS, Way
from topicsd.log.recovery import RecoveryRefused
from topicsd.log.walk import UnreadableLog

Before = Literal["power cut", "kill", "failed sync", "clean"]


class BrokenStart:
    """The disk that a script left, copied for each of several starts."""

    def __init__(self, name: str, manner: Manner, before: Before, calls: int) -> None:
        self.rng = Random(f"{name} {manner} {before} {calls}")
        armed: list[Fault] = []
        played = Played(name, manner, lambda disk: armed.extend(_arm(disk, before, calls)))
        self.is_over = not (armed[0].fired if armed else played.ended)
        self.exact = before in ("kill", "clean")
        self._machine_failed = before in ("power cut", "failed sync")
        if before == "clean" and played.run is not None and played.run.steps[-1] != "close":
            played.run.close()
        played.book.ledger.new_generation(machine_failed=self._machine_failed)
        self._book = played.book
        self._clock = played.clock_later()
        self._disk = (
            played.disk.after_power_cut(self.rng)
            if before == "power cut"
            else played.disk.after_process_kill()
        )

    def copy(self) -> tuple[MemoryDisk, ShardBook, ManualClock]:
        return (
            self._disk.after_process_kill(),
            self._book.copied(),
            ManualClock(self._clock.now_ms(), 5000.0),
        )


def _arm(disk: MemoryDisk, before: Before, calls: int) -> list[Fault]:
    """Arm the end of the script; a clean stop happens at its end and not at a call."""
    if before == "power cut":
        disk.cut_power_after(calls)
    elif before == "kill":
        disk.kill_process_after(calls, torn=True)
    elif before == "failed sync":
        return [disk.fail("sync_data", calls + 1, seed=calls)]
    return []


def end_each_start(name: str, manner: Manner, before: Before, calls: int, *, by_cut: bool) -> bool:
    """End the start in each of its calls; return False if the script ended before `calls`."""
    broken = BrokenStart(name, manner, before, calls)
    start_calls, ended = 0, True
    while ended:
        replay = f"end_each_start({name!r}, {manner!r}, {before!r}, {calls}, by_cut={by_cut})"
        with attempt(CUTS if by_cut else KILLS, f"{replay}, in call {start_calls + 1} of the start"):
            disk, book, clock = broken.copy()
            if by_cut:
                disk.cut_power_after(start_calls)
            else:
                disk.kill_process_after(start_calls, torn=True)
            with suppress(MachineGoneError):
                ShardRun(disk, book, clock)
            ended = disk.is_gone
            book.ledger.new_generation(machine_failed=by_cut)
            after = disk.after_power_cut(broken.rng) if by_cut else disk.after_process_kill()
            recover_and_continue(after, book, clock, broken.rng, exact=broken.exact and not by_cut)
        start_calls += 1
    return not broken.is_over


def fail_each_start(name: str, manner: Manner, before: Before, calls: int, way: Way) -> bool:
    """Fail each call of the start in this way; return False if the script ended before `calls`."""
    broken = BrokenStart(name, manner, before, calls)
    nth, fired = 1, True
    while fired:
        replay = f"fail_each_start({name!r}, {manner!r}, {before!r}, {calls}, {way!r})"
        with attempt(FAULTS, f"{replay}, call {nth} of the start"):
            disk, book, clock = broken.copy()
            fault = way.arm(disk, nth)
            exact = broken.exact
            try:
                run = ShardRun(disk, book, clock)
            except (RecoveryRefused, UnreadableLog):
                # UnreadableLog: the only snapshot could not be read, and the log begins after it.
                assert fault.fired
            except OSError:
                # Before the lock is held, nothing is known about the log.
                assert fault.fired
                assert way.call in (None, "lock")
                assert nth == 1
            else:
                disk.clear_faults()
                run.check(exact=exact)
            fired = fault.fired > 0
            # After a failed sync, or a failed note of it, a head is not exact any more.
            exact = exact and not fired
            book.ledger.new_generation(machine_failed=fired)
            recover_and_continue(disk.after_process_kill(), book, clock, broken.rng, exact=exact)
        nth += 1
    return not broken.is_over
