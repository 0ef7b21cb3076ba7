"""The workers, one a shard: started, watched, started again, and brought to an orderly end.

P1  A worker that ends without having been asked to is started again, after a wait that doubles (`Backoff`).
P2  A worker that ends with `EXIT_REFUSED` found what it will not serve; it is not started again, and its
    reason stays on the board, of which this process is the writer while there is no worker.
P3  A worker that does not beat is not given connections after `fresh_seconds`, and what it has not received
    by then is taken back. After `hung_seconds` it is killed. One that is not ready yet has `start_seconds`.
P4  Silence is only counted while this process itself was awake: after a pause of the whole machine nobody is
    killed for the time in which nobody ran.
P5  The end: the word to drain, behind all connections that were handed over; SIGTERM at the deadline or when
    hastened; SIGKILL after a last grace.

Must not know: what a connection is about, HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from router.backoff import Backoff
from router.worker_process import WorkerProcess, describe_end
from shared.board import Board, Slot, WorkerState
from shared.clock import Clock
from shared.errors import NOT_READY, SHUTTING_DOWN, STORAGE_FAILED, Refusal
from shared.handoff import Handed
from shared.log_setup import fields

logger = logging.getLogger(__name__)

EXIT_REFUSED: Final = 3
RETRY_AFTER_MS: Final = 1000


class PoolTimes(NamedTuple):
    tick_seconds: float = 0.1
    fresh_seconds: float = 1.0
    hung_seconds: float = 5.0
    start_seconds: float = 30.0
    backoff_first_seconds: float = 0.1
    backoff_max_seconds: float = 5.0
    healthy_seconds: float = 30.0
    drain_seconds: float = 10.0
    grace_seconds: float = 5.0


class _Member:
    """What is known of a shard's worker over all its lives."""

    def __init__(self, shard: int, slot: Slot, backoff: Backoff) -> None:
        self.shard = shard
        self.slot = slot
        self.backoff = backoff
        self.process: WorkerProcess | None = None
        self.restart: asyncio.TimerHandle | None = None
        self.restart_count = 0
        self.ready_since: float | None = None
        self.was_ready = False
        self.is_told_to_drain = False


class WorkerPool:
    """`spec` is what every worker is told, `on_returned` takes connections that a worker will not answer."""

    def __init__(
        self,
        board: Board,
        clock: Clock,
        command: Sequence[str],
        environment: Mapping[str, str],
        spec: Mapping[str, object],
        on_returned: Callable[[int, list[Handed]], None],
        times: PoolTimes = PoolTimes(),  # noqa: B008  # a tuple
    ) -> None:
        self._board = board
        self._clock = clock
        self._command = command
        self._environment = environment
        self._spec = spec
        self._on_returned = on_returned
        self._times = times
        self._fresh_ms = int(times.fresh_seconds * 1000)
        self._loop = asyncio.get_running_loop()
        self._members = [
            _Member(
                shard,
                slot,
                Backoff(times.backoff_first_seconds, times.backoff_max_seconds, times.healthy_seconds),
            )
            for shard, slot in enumerate(board)
        ]
        self._next_any = 0
        self._ticked = 0.0
        self._watched_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_draining = False
        self._changed = asyncio.Event()
        self._haste = 0
        self._is_orderly = True

    def __len__(self) -> int:
        return len(self._members)

    @property
    def board(self) -> Board:
        return self._board

    def start(self) -> None:
        self._ticked = self._watched_since = self._clock.monotonic()
        for member in self._members:
            self._spawn(member)
        self._timer = self._loop.call_later(self._times.tick_seconds, self._tick)

    # -- placing connections -------------------------------------------------------------------------------

    def refusal(self, shard: int) -> Refusal | None:
        """Why no connection can be handed to the shard now; None when one can."""
        slot = self._board.slot(shard)
        state = slot.state
        if state is WorkerState.READY and self._silence_ms(slot) <= self._fresh_ms:
            return None
        detail: dict[str, object] = {"shard": shard}
        if state is WorkerState.REFUSED or state is WorkerState.FAILED:
            message = f"shard {shard} cannot serve what is on its disk: {slot.reason or state.name.lower()}"
            return Refusal(STORAGE_FAILED, message, detail, RETRY_AFTER_MS)
        if self.is_draining:
            return Refusal(SHUTTING_DOWN, "the server is shutting down", None, RETRY_AFTER_MS)
        told = "does not answer" if state is WorkerState.READY else f"is {state.name.lower()}"
        return Refusal(NOT_READY, f"shard {shard} {told}", detail, RETRY_AFTER_MS)

    def any_ready(self) -> int | None:
        """A shard that takes connections, each in its turn; None when there is none."""
        count = len(self._members)
        for offset in range(count):
            shard = (self._next_any + offset) % count
            if self.refusal(shard) is None:
                self._next_any = shard + 1
                return shard
        return None

    def send(self, shard: int, fd: int, data: bytes) -> bool:
        """Hand a connection to a shard that `refusal` allows; False when there is no room now."""
        process = self._members[shard].process
        return process is not None and process.send(fd, data)

    # -- how they are --------------------------------------------------------------------------------------

    def is_serving(self, shard: int) -> bool:
        return self.refusal(shard) is None

    def was_ready(self, shard: int) -> bool:
        """Whether it has ever been."""
        return self._members[shard].was_ready or self._board.slot(shard).state is WorkerState.READY

    def restart_count(self, shard: int) -> int:
        return self._members[shard].restart_count

    def pids(self) -> list[int]:
        return [member.process.pid for member in self._members if member.process is not None]

    def all_beat(self) -> bool:
        """Whether every worker there should be is alive, for a watchdog above this one."""
        return all(
            member.process is not None and self._silence_ms(member.slot) <= self._times.hung_seconds * 1000
            for member in self._members
            if member.slot.state is not WorkerState.REFUSED
        )

    def _silence_ms(self, slot: Slot) -> int:
        return int(self._clock.monotonic() * 1000) - slot.beat_ms

    # -- the lives of a worker -----------------------------------------------------------------------------

    def _spawn(self, member: _Member) -> None:
        member.restart = None
        slot = member.slot
        slot.clear()
        slot.beat_ms = int(self._clock.monotonic() * 1000)
        slot.state = WorkerState.STARTING
        spec = {**self._spec, "shard": member.shard, "shards": len(self._members)}
        try:
            process = WorkerProcess(
                self._command,
                self._environment,
                spec,
                self._board.fd,
                lambda process: self._ended(member, process),
            )
        except OSError as error:
            self._start_later(member, f"could not be started: {error}")
            return
        member.process = process
        logger.info("worker started", extra=fields(shard=member.shard, worker_pid=process.pid))

    def _ended(self, member: _Member, process: WorkerProcess) -> None:
        assert member.process is process
        member.process = None
        code = process.exit_code
        assert code is not None
        slot = member.slot
        reason = slot.reason
        slot.clear()
        told = describe_end(code)
        returned = [handed for handed in process.take_back() if not handed.drains]
        if self.is_draining:
            self._is_orderly = self._is_orderly and code == 0
            logger.info("worker %s", told, extra=fields(shard=member.shard))
        elif code == EXIT_REFUSED:
            slot.reason = reason or "no reason given"
            slot.state = WorkerState.REFUSED
            logger.error("worker refuses to serve: %s", slot.reason, extra=fields(shard=member.shard))
        else:
            self._start_later(member, f"{told}: {reason}" if reason else told)
        member.ready_since = None
        if returned:
            self._on_returned(member.shard, returned)
        self._changed.set()

    def _start_later(self, member: _Member, told: str) -> None:
        healthy_for = 0.0 if member.ready_since is None else self._clock.monotonic() - member.ready_since
        wait = member.backoff.ended(healthy_for)
        member.restart_count += 1
        member.slot.clear()
        member.slot.reason = told
        logger.warning("worker %s", told, extra=fields(shard=member.shard, again_in_seconds=wait))
        member.restart = self._loop.call_later(wait, self._spawn, member)

    # -- watching ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._clock.monotonic()
        if now - self._ticked > self._times.tick_seconds + self._times.fresh_seconds / 2:
            self._watched_since = now
        self._ticked = now
        for member in self._members:
            if member.process is not None:
                self._watch(member, member.process, now)
        self._timer = self._loop.call_later(self._times.tick_seconds, self._tick)

    def _watch(self, member: _Member, process: WorkerProcess, now: float) -> None:
        slot = member.slot
        state = slot.state
        if state is WorkerState.READY and member.ready_since is None:
            member.ready_since = now
            member.was_ready = True
        if self.is_draining and not member.is_told_to_drain:
            member.is_told_to_drain = process.send_drain()
        silent_for = now - max(slot.beat_ms / 1000, self._watched_since)
        if silent_for > self._times.fresh_seconds:
            self._take_back(member, process)
        is_up = state not in (WorkerState.STARTING, WorkerState.REPLAYING)
        if silent_for > (self._times.hung_seconds if is_up else self._times.start_seconds):
            logger.error(
                "worker hangs and is killed", extra=fields(shard=member.shard, silent_seconds=silent_for)
            )
            process.signal(signal.SIGKILL)

    def _take_back(self, member: _Member, process: WorkerProcess) -> None:
        taken = process.take_back()
        if any(handed.drains for handed in taken):
            member.is_told_to_drain = False
        returned = [handed for handed in taken if not handed.drains]
        if returned:
            self._on_returned(member.shard, returned)

    # -- the end -------------------------------------------------------------------------------------------

    def hasten(self) -> None:
        """A second wish to end: do not wait until the deadline. A third: kill."""
        self._haste += 1
        self._changed.set()

    async def drain(self) -> bool:
        """Bring all workers to their end; whether each ended by itself and without complaint."""
        self.is_draining = True
        for member in self._members:
            if member.restart is not None:
                member.restart.cancel()
                member.restart = None
            if member.process is not None:
                member.is_told_to_drain = member.process.send_drain()
        if not await self._wait_for_ends(self._times.drain_seconds, haste=1):
            self._signal_all(signal.SIGTERM)
            if not await self._wait_for_ends(self._times.grace_seconds, haste=2):
                logger.error("workers did not end in time and are killed", extra=fields(pids=self.pids()))
                self._signal_all(signal.SIGKILL)
                await self._wait_for_ends(None, haste=None)
        if self._timer is not None:
            self._timer.cancel()
        return self._is_orderly

    def _signal_all(self, number: signal.Signals) -> None:
        for member in self._members:
            if member.process is not None:
                member.process.signal(number)

    async def _wait_for_ends(self, seconds: float | None, haste: int | None) -> bool:
        """Whether all have ended, within the time, and before somebody hastened so much."""
        deadline = None if seconds is None else self._loop.time() + seconds
        while self.pids():
            if haste is not None and self._haste >= haste:
                return False
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                return not self.pids()
        return True
