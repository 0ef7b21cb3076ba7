"""Long random scripts: a shard is written to, ended in every way, and started again.

Promises: a run is a number of generations on one disk with one book, decided entirely by its seed. Each
generation takes some dozens of random steps in a random manner of the disk thread and ends in a power cut, a
SIGKILL, a failed sync, a write error, a full disk or a clean stop, at a random call; then the next one judges
what it finds. Checkpoints begin at any time, and the newest snapshot is sometimes damaged between two runs.
"""

from __future__ import annotations

import errno
from random import Random

from shared.settings.settings import Settings
from tests.harness.books.ledger_entries import Request
from tests.harness.books.shard_book import Incarnation, ShardBook
from tests.harness.machine.faults import MachineGoneError
from tests.harness.machine.manual_clock import ManualClock
from tests.harness.machine.memory_disk import MemoryDisk
from tests.harness.shard.shard_driver import empty_disk
from tests.harness.shard.shard_run import EVERY_MANNER, ShardRun
from tests.harness.sweeps.crash_sweep import finish, without_newest_snapshot
from tests.harness.sweeps.fault_sweep import SPACE_RETRY_MS
from topicsd.log.recovery import RecoveryRefused

ENDS = ("power cut", "power cut", "kill", "clean", "failed sync", "failed write", "full")
NAMES = ("a", "b", "c", "e")
TAGS = (None, None, "x", "xy", "z")
_CALLS_A_GENERATION = (60, 200)


class RandomRun:
    def __init__(self, seed: str) -> None:
        self.rng = Random(seed)
        self.disk = empty_disk()
        self.book = ShardBook()
        self.clock = ManualClock()
        self.exact = self.clean = True
        self.history: list[str] = []
        """The steps of every generation, shown with a failure."""
        self._keyed: list[Request] = []

    def steps(self) -> list[str]:
        return self.history

    def play(self, generations: int) -> None:
        for _ in range(generations):
            self._generation()
        self._start(self.disk).check(exact=self.exact, clean=self.clean)

    def _generation(self) -> None:
        rng = self.rng
        if rng.random() < 0.15 and (older := without_newest_snapshot(self.disk)) is not None:
            self.disk = older
            self.history.append("-- the newest snapshot is damaged")
        disk = self.disk
        end = rng.choice(ENDS)
        calls = rng.randrange(rng.choice(_CALLS_A_GENERATION))
        if end == "power cut":
            disk.cut_power_after(calls)
        elif end == "kill":
            disk.kill_process_after(calls, torn=rng.random() < 0.5)
        run: ShardRun | None = None
        try:
            run = self._start(disk)
            run.check(exact=self.exact, clean=self.clean)
            self.exact = True
            if end in ("failed sync", "failed write", "full"):
                self._arm(disk, end)
            self._script(run)
            if end == "full":
                self._make_space(run)
            if end == "clean":
                run.close(checkpoint=rng.random() < 0.6)
            finish(run)
        except MachineGoneError:
            pass
        except RecoveryRefused:
            # Only a fault may refuse a start, and none is armed during a start.
            raise AssertionError(f"a start was refused: {self.history}") from None
        self._end(run, end)

    def _start(self, disk: MemoryDisk) -> ShardRun:
        settings = Settings(
            wal_file_bytes=self.rng.choice((1500, 4096, 20_000)),
            segment_max_events=self.rng.choice((3, 10, 50)),
            segment_max_bytes=self.rng.choice((900, 20_000)),
            segment_max_age_ms=self.rng.choice((1000, 1_000_000)),
            checkpoint_interval_ms=self.rng.choice((200, 60_000)),
        )
        manner = self.rng.choice(EVERY_MANNER)
        self.history.append(f"-- {manner}, files of {settings.wal_file_bytes}")
        run = ShardRun(disk, self.book, self.clock, manner=manner, settings=settings)
        run.steps = self.history
        return run

    def _arm(self, disk: MemoryDisk, end: str) -> None:
        nth = self.rng.randrange(1, 12)
        if end == "failed sync":
            disk.fail("sync_data", nth, seed=self.rng.randrange(100))
        elif end == "failed write":
            disk.fail("pwrite", nth, errno.EIO)
        else:
            disk.fail(self.rng.choice(("allocate", "create", "pwrite")), nth, errno.ENOSPC, forever=True)

    def _make_space(self, run: ShardRun) -> None:
        run.disk.clear_faults()
        run.advance(SPACE_RETRY_MS + 1)
        run.settle()
        request = run.append("c", 10)
        run.settle()
        assert request.fate == "acked", run.calls[-1].answer
        # Give the background time to log again what the full disk kept out of the log.
        run.advance(60)

    def _end(self, run: ShardRun | None, end: str) -> None:
        disk = self.disk
        failed = run is not None and run.has_failed and run.failures != []
        machine_failed = failed or (end == "power cut" and disk.is_gone)
        self.history.append(f"-- {end}{' (was over before)' if not disk.is_gone else ''}")
        self.book.ledger.new_generation(machine_failed=machine_failed)
        self.clean = end == "clean" and run is not None
        self.exact = self.exact and not machine_failed
        self.disk = disk.after_power_cut(self.rng) if end == "power cut" else disk.after_process_kill()
        if end == "power cut" and not disk.is_gone:
            # The script ended first; then the power failed.
            self.book.ledger.new_generation(machine_failed=True)
            self.exact = False
        self.clock = ManualClock(self.clock.now_ms() + self.rng.randrange(2000), 5000.0)
        if self.clean and self.rng.random() < 0.3:
            self.clock.step_wall(-self.rng.randrange(5000))

    # -- steps of a generation -------------------------------------------------------------------------

    def _script(self, run: ShardRun) -> None:
        for _ in range(self.rng.randrange(10, 60)):
            self._step(run)
            if self.rng.random() < 0.4:
                run.turn()
        run.turn()

    def _step(self, run: ShardRun) -> None:
        rng = self.rng
        kind = rng.random()
        name = rng.choice(NAMES)
        if kind < 0.55:
            self._append(run, name)
        elif kind < 0.63:
            self._delete(run, name)
        elif kind < 0.70:
            self._change(run, name)
        elif kind < 0.74:
            self._drop(run, name)
        elif kind < 0.80:
            run.sync()
        elif kind < 0.86:
            run.advance(rng.choice((10, 60, 300, 1300)))
        elif kind < 0.90 and self._keyed:
            self._retry(run)
        elif kind < 0.94:
            run.checkpoint()
        elif kind < 0.97:
            run.copy(rng.randrange(1, 12))
        else:
            run.all_contents()

    def _append(self, run: ShardRun, name: str) -> None:
        rng = self.rng
        sizes = [rng.choice((1, 10, 10, 100, 700)) for _ in range(rng.choice((1, 1, 1, 2, 4, 40)))]
        tags = tuple(rng.choice(TAGS) for _ in sizes)
        key = f"key {len(self.history)}" if rng.random() < 0.2 else None
        patch = {"durability": "ephemeral" if name == "e" else rng.choice(("disk", "fsync", "memory"))}
        request = run.append(name, *sizes, tags=tags, key=key, **patch)
        if key is not None:
            self._keyed.append(request)

    def _retry(self, run: ShardRun) -> None:
        """Repeat a request to a topic that is still the same incarnation."""
        request = self.rng.choice(self._keyed)
        topic = run.book.of_name(request.topic.split("#")[0])
        is_there = topic is not None and topic.page == request.topic and topic.is_born and not topic.leaving
        # A class that loses its records with the process loses their keys, too.
        if is_there and request.durability != "ephemeral" and request.fate != "in_flight":
            run.retry(request)

    def _delete(self, run: ShardRun, name: str) -> None:
        topic = run.book.of_name(name)
        if topic is None or not topic.is_born or topic.leaving:
            return
        tag = self.rng.choice((None, "x", "z"))
        before_seq = self.rng.randrange(1, 60) if tag is None or self.rng.random() < 0.3 else None
        run.delete(name, before_seq=before_seq, tag=tag, is_prefix=self.rng.random() < 0.5)

    def _change(self, run: ShardRun, name: str) -> None:
        # If the preceding deletion is refused, it is unknown which topic was changed.
        same = [topic for topic in run.book.topics if topic.name == name]
        if same and not self._is_settled(same):
            return
        rng = self.rng
        patches: list[dict[str, object]] = [
            {"cap_records": rng.choice((0, 5, 30))},
            {"cap_bytes": rng.choice((0, 900, 5000))},
            {"ttl_ms": rng.choice((0, 400, 3000))},
            {"durability": rng.choice(("disk", "fsync", "memory"))},
        ]
        patch = rng.choice(patches)
        run.put(name, **(patch | {"durability": "ephemeral"} if name == "e" else patch))

    def _drop(self, run: ShardRun, name: str) -> None:
        same = [topic for topic in run.book.topics if topic.name == name]
        if self._is_settled(same):
            run.drop(name)

    def _is_settled(self, same: list[Incarnation]) -> bool:
        return len(same) == 1 and same[0].is_born and not same[0].leaving
