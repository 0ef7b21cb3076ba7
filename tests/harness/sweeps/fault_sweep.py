"""A sweep that runs a script with one failing disk call, for each call and each way to fail.

Promises, for one fault: every request is answered once, with an ack or with a refusal that says whether it
may have been written; a log that has failed acknowledges nothing more, and a log that has not accepts writes
again by itself; reads continue. Then the process is started again on a healthy disk, and the book judges what
it shows, as after a crash.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from random import Random

from shared.contract.errors import STORAGE_FAILED, STORAGE_FULL
from tests.harness.books.shard_book import ShardBook
from tests.harness.machine.faults import Fault
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import PATHS, empty_disk
from tests.harness.shard.shard_run import Manner, ShardRun
from tests.harness.sweeps.attempts import attempt
from tests.harness.sweeps.checkpoint_scripts import SCRIPTS
from tests.harness.sweeps.crash_sweep import recover_and_continue
from topicsd.log.recovery import RecoveryRefused
from topicsd.log.walk import UnreadableLog

FAULTS = "fault, disk calls failed"
SPACE_RETRY_MS = 5000


@dataclass(frozen=True)
class Way:
    """One way for a call to fail; `call` None is any mutating call."""

    call: str | None = None
    error: int = errno.EIO
    forever: bool = False
    short_bytes: int | None = None
    # Which sectors of a failed sync reached the media anyway; None is none of them.
    seed: int | None = None

    def arm(self, disk: MemoryDisk, nth: int) -> Fault:
        return disk.fail(
            self.call,
            nth,
            self.error,
            forever=self.forever,
            short=self.short_bytes is not None,
            short_bytes=self.short_bytes,
            seed=self.seed,
        )


class FaultCase:
    """One script with one fault, from its start to what the next start shows."""

    def __init__(self, name: str, manner: Manner, way: Way, nth: int) -> None:
        self.name = name
        self.manner = manner
        self.disk = empty_disk()
        self.book = ShardBook()
        self.clock = ManualClock()
        self.fault = way.arm(self.disk, nth)
        self.way = way
        self.rng = Random(f"{name} {manner} {way} {nth}")
        self.run: ShardRun | None = None
        self.failed = False

    def steps(self) -> list[str]:
        return self.run.steps if self.run is not None else []

    def play(self) -> None:
        try:
            self.run = run = ShardRun(self.disk, self.book, self.clock, manner=self.manner)
        except (RecoveryRefused, UnreadableLog, OSError):
            # A refused start has changed nothing that the next one needs.
            assert self.fault.fired
            return
        self._play_script(run)
        run.settle()
        run.end_answered()
        self.failed = run.has_failed
        assert len(run.failures) == self.failed, run.failures
        if self.failed:
            # A failed log is caused by a fault in the WAL; checkpoint I/O elsewhere does not fail it.
            assert any(PATHS.wal in on or not on for on in self.fault.on), self.fault.on
        self._check_reads(run)
        if self.failed:
            assert self.fault.fired
            self._takes_nothing_more(run)
        elif run.steps[-1] != "close":
            self._takes_writes_again(run)

    def _play_script(self, run: ShardRun) -> None:
        try:
            SCRIPTS[self.name](run)
        except OSError:
            # Closing may report that the clean end was not written.
            assert self.fault.fired
            assert run.steps[-1] == "close"

    def _check_reads(self, run: ShardRun) -> None:
        if run.steps[-1] != "close" and (self.way.call is None or self.way.call != "pread"):
            run.audit()

    def _takes_nothing_more(self, run: ShardRun) -> None:
        request = run.append("z", 10)
        run.settle()
        assert request.fate == "errored", run.calls[-1].answer
        assert run.calls[-1].answer.code == STORAGE_FAILED

    def _takes_writes_again(self, run: ShardRun) -> None:
        """Check that writes work within 5 s of free space, and that refused ones can be repeated."""
        refused = [
            request
            for topic in self.book.topics
            for request in self.book.ledger.page(topic.page).requests
            if request.fate == "refused" and request.key is not None
        ]
        self.disk.clear_faults()
        run.advance(SPACE_RETRY_MS + 1)
        run.settle()
        for request in refused:
            run.retry(request)
        names = run.shard.topic_names()
        for name in [*names, "z"]:
            run.append(name, 10)
        run.settle()
        assert not run.has_failed
        answers = [call.answer for call in run.calls[-len(names) - 1 :]]
        assert not [one for one in answers if getattr(one, "code", None) == STORAGE_FULL], answers
        run.checkpoint()
        run.settle()
        assert run.checkpoint_failure is None

    def start_again(self) -> None:
        self.book.ledger.new_generation(machine_failed=self.failed)
        clock = ManualClock(self.clock.now_ms() + 1000, 5000.0)
        if self.failed and self.rng.random() < 0.3:
            disk = self.disk.after_power_cut(self.rng)
        else:
            disk = self.disk.after_process_kill()
        recover_and_continue(disk, self.book, clock, self.rng, exact=not self.failed)


def fault_once(name: str, manner: Manner, way: Way, nth: int) -> bool:
    """Fail the n-th call; return False if there was none."""
    case = FaultCase(name, manner, way, nth)
    with attempt(FAULTS, f"fault_once({name!r}, {manner!r}, {way!r}, {nth})", case.steps):
        case.play()
        if case.fault.fired:
            case.start_again()
    return case.fault.fired > 0


def sweep_faults(name: str, manner: Manner, way: Way, stride: int = 1) -> None:
    """Fail every `stride`-th call of this way, from a start that depends on the way, one run each."""
    nth = 1 + Random(repr(way)).randrange(stride)
    while fault_once(name, manner, way, nth):
        nth += stride
