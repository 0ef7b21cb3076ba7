"""A sweep that runs a script once for each of its disk calls and crashes it at that call.

For one power cut: the script runs until the power fails during its n-th mutating call. The disk then gets
several outcomes of its unsynced data, each from a seed that is part of the case's name. Each outcome is
recovered and judged, recovered once more with the same result, written to in every topic, and ended and
recovered again, so that a recovery that only looks right is exposed by later runs. For one kill: only the
process ends, so nothing that was written may be missing, and every head is exact.

A failure carries the line that replays it, and the steps of the script (`attempts.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from random import Random

from tests.harness.books.shard_book import ShardBook
from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import PATHS, empty_disk
from tests.harness.shard.shard_run import Manner, ShardRun
from tests.harness.sweeps.attempts import attempt
from tests.harness.sweeps.checkpoint_scripts import SCRIPTS
from topicsd.engine.checkpoint.snapshot_files import read_snapshots, snapshot_numbers
from topicsd.engine.checkpoint.snapshot_format import Snapshot
from topicsd.engine.requests import TopicState

DEEP = os.environ.get("TOPICS_TEST_DEEP", "") not in ("", "0")

CUTS = "crash, power cuts"
KILLS = "crash, processes killed"

# A recovery of the small disks makes fewer calls than this.
_RECOVERY_CALLS = 30


def script_calls(name: str, manner: Manner) -> int:
    """Return the number of mutating calls of the script, opening the shard included."""
    disk = empty_disk()
    run = ShardRun(disk, ShardBook(), ManualClock(), manner=manner, audited=True)
    SCRIPTS[name](run)
    finish(run)
    assert run.checkpoint_failure is None
    return disk.calls


def finish(run: ShardRun) -> None:
    """Check that a script that ran to its end has all its answers."""
    if run.steps[-1] != "close":
        run.settle()
    run.end_answered()


class Played:
    """A script run that was crashed or completed."""

    def __init__(self, name: str, manner: Manner, arm: Callable[[MemoryDisk], None]) -> None:
        self.disk = empty_disk()
        self.book = ShardBook()
        self.clock = ManualClock()
        self.run: ShardRun | None = None
        self.ended = False
        arm(self.disk)
        try:
            self.run = ShardRun(self.disk, self.book, self.clock, manner=manner)
            SCRIPTS[name](self.run)
            finish(self.run)
        except MachineGoneError:
            self.ended = True
        except OSError:
            # With a fault armed, closing may report that the clean end was not written.
            assert self.run is not None
            assert self.run.steps[-1] == "close"

    def steps(self) -> list[str]:
        return self.run.steps if self.run is not None else []

    def clock_later(self) -> ManualClock:
        """Return the clock of the next run, a second later."""
        return ManualClock(self.clock.now_ms() + 1000, 5000.0)


def cut_once(name: str, manner: Manner, calls: int, seeds: list[int]) -> bool:
    """Cut the power in call `calls + 1`; return False if the script ended before."""
    played = Played(name, manner, lambda disk: disk.cut_power_after(calls))
    played.book.ledger.new_generation(machine_failed=True)
    for seed in seeds:
        with attempt(CUTS, f"cut_once({name!r}, {manner!r}, {calls}, [{seed}])", played.steps):
            rng = Random(f"{name} {manner} {calls} {seed}")
            disk = played.disk.after_power_cut(rng)
            recover_and_continue(disk, played.book.copied(), played.clock_later(), rng)
    return played.ended


def kill_once(name: str, manner: Manner, calls: int, *, torn: bool) -> bool:
    """Kill the process in call `calls + 1`; return False if the script ended before."""
    played = Played(name, manner, lambda disk: disk.kill_process_after(calls, torn=torn))
    with attempt(KILLS, f"kill_once({name!r}, {manner!r}, {calls}, torn={torn})", played.steps):
        played.book.ledger.new_generation(machine_failed=False)
        rng = Random(f"{name} {manner} {calls} {torn}")
        disk = played.disk.after_process_kill()
        recover_and_continue(disk, played.book, played.clock_later(), rng, exact=True)
    return played.ended


def recover_and_continue(
    disk: MemoryDisk, book: ShardBook, clock: ManualClock, rng: Random, *, exact: bool = False
) -> None:
    """Recover and judge twice, write to every topic, crash or stop, recover and judge again."""
    run = ShardRun(disk, book, clock)
    run.check(exact=exact)
    contents, states, sessions = run.all_contents(), run.states(), run.sessions()
    again = ShardRun(disk.after_process_kill(), book, clock)
    twice = (again.all_contents(), again.states(), again.sessions())
    assert twice == (contents, states, sessions), "a second recovery has another result"
    if (older := without_newest_snapshot(disk)) is not None:
        other = ShardRun(older, book, clock)
        what = "recovery from the older snapshot has another result"
        shown = (other.all_contents(), kept_states(other), other.sessions())
        assert shown == (contents, kept_states(run), sessions), what
    run = again
    if rng.random() < 0.4:
        # The next run ends while it writes, or already during its start.
        run = ShardRun(disk.after_process_kill(), book, clock)
        _end_somewhere(run, book, clock, rng)
        return
    write_everywhere(run, rng)
    run.end_answered()
    before = kept_states(run)
    if rng.random() < 0.5:
        run.close()
        book.ledger.new_generation(machine_failed=False)
        after = ShardRun(run.disk.after_power_cut(rng), book, clock)
        assert kept_states(after) == before
        after.check(exact=True, clean=True)
    else:
        book.ledger.new_generation(machine_failed=False)
        after = ShardRun(run.disk.after_process_kill(), book, clock)
        assert kept_states(after) == before
        after.check(exact=True)


def without_newest_snapshot(disk: MemoryDisk) -> MemoryDisk | None:
    """Damage the newest snapshot of a copy of the disk; return None if fewer than two are good.

    More than two exist when a power cut undid a drop, and the log does not reach back to the oldest.
    """
    newest = list(islice(read_snapshots(disk, PATHS), 2))
    if len(newest) < 2 or not all(isinstance(snapshot, Snapshot) for snapshot in newest):
        return None
    path = PATHS.snapshot(snapshot_numbers(disk, PATHS)[0])
    twin = disk.after_process_kill()
    twin.flip(path, len(twin.read_file(path)) // 2, 0xFF)
    return twin


def kept_states(run: ShardRun) -> dict[str, TopicState]:
    """Return the states of the topics that a restart restores unchanged."""
    return {name: state for name, state in run.states().items() if state.config.durability != "ephemeral"}


def _end_somewhere(run: ShardRun, book: ShardBook, clock: ManualClock, rng: Random) -> None:
    is_cut = rng.random() < 0.7
    arm = run.disk.cut_power_after if is_cut else run.disk.kill_process_after
    arm(rng.randrange(_RECOVERY_CALLS))
    with suppress(MachineGoneError):
        write_everywhere(run, rng)
    book.ledger.new_generation(machine_failed=is_cut)
    disk = run.disk.after_power_cut(rng) if is_cut else run.disk.after_process_kill()
    ShardRun(disk, book, clock).check(exact=not is_cut)


def write_everywhere(run: ShardRun, rng: Random) -> None:
    """Append to every topic, and create one more topic and a session of it."""
    for name in [*run.shard.topic_names(), "z"]:
        run.append(name, 10, 10)
        if rng.random() < 0.5:
            run.turn()
    run.settle()
    if rng.random() < 0.3:
        run.checkpoint()
        if rng.random() < 0.5:
            run.settle()
    run.append("z", rng.choice((5, 1500)))
    session = run.watch("z")
    run.settle()
    if rng.random() < 0.3:
        run.unwatch(session)
    if rng.random() < 0.5:
        run.advance(60)


def sweep_cuts(name: str, manner: Manner, outcomes: int, stride: int = 1) -> int:
    """Cut the power at every `stride`-th call, with several outcomes each; return the call count."""
    calls = Random(manner).randrange(stride)
    while cut_once(name, manner, calls, list(range(outcomes))):
        calls += stride
    return calls + 1


def sweep_kills(name: str, manner: Manner, *, torn: bool, stride: int = 1) -> int:
    """Kill the process in every `stride`-th call; return the call count."""
    calls = Random(f"{manner} {torn}").randrange(stride)
    while kill_once(name, manner, calls, torn=torn):
        calls += stride
    return calls + 1
