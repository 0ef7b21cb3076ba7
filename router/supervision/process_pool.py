"""Processes that are to run, one a slot of a board: started, watched, started again, and brought to an end.

P1  A process that ends without having been asked to is started again, after a wait that doubles (`Backoff`).
    Its last end is told until it is ready again.
P2  A process that ends with `EXIT_REFUSED` found what it will not serve; it is not started again, and its
    reason stays on the board, of which this process is the writer while there is no other.
P3  What a process that does not beat has not received after `fresh_seconds` is taken back. After
    `hung_seconds` it is killed. One that is not ready yet has `start_seconds`. While it waits for its disk in
    a call of the kernel that is no silence: the disk is slow, and a new process would wait for it too.
P4  Silence is only counted while this process itself was awake: after a pause of the whole machine nobody is
    killed for the time in which nobody ran.
P5  The end: the word to drain, behind all connections that were handed over; SIGTERM at the deadline or when
    hastened; SIGKILL after a last grace.
P6  Connections may come into a channel at whose other end is nobody, from a process that has not seen it on
    the board yet. They are taken back too.

How long to wait before a worker that ended is started again.

A worker that crashes on its way up must not take the machine with it, one that ran well for a while deserves
to be back at once.

The workers, one a shard: a pool of processes, and the doors through which they get their connections.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from router.accept.worker_channels import ShardDoors
from router.supervision.worker_process import ChildChannel, WorkerProcess, describe_end
from shared.contract.errors import Refusal
from shared.ipc.board import Board, Slot, WorkerState
from shared.ipc.handoff import Handed
from shared.runtime.clock import Clock
from shared.runtime.log_setup import fields


class Backoff:
    """
    >>> backoff = Backoff(first_seconds=0.1, max_seconds=5.0, healthy_seconds=30.0)
    >>> [backoff.ended(healthy_for=0.0) for _ in range(7)]
    [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    >>> backoff.ended(healthy_for=31.0)
    0.1
    """

    def __init__(self, first_seconds: float, max_seconds: float, healthy_seconds: float) -> None:
        self._first = first_seconds
        self._max = max_seconds
        self._healthy = healthy_seconds
        self._next = first_seconds

    def ended(self, healthy_for: float) -> float:
        """Seconds to wait; `healthy_for` is how long the worker that ended had been serving."""
        if healthy_for >= self._healthy:
            self._next = self._first
        wait = self._next
        self._next = min(self._next * 2, self._max)
        return wait


logger = logging.getLogger(__name__)

EXIT_REFUSED: Final = 3


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


class Told(NamedTuple):
    """What a process is told when it is started, and which descriptors it inherits for it."""

    spec: Mapping[str, object]
    fds: tuple[int, ...] = ()


class _Member:
    """What is known of a slot's process over all its lives."""

    def __init__(self, number: int, slot: Slot, backoff: Backoff) -> None:
        self.number = number
        self.slot = slot
        self.backoff = backoff
        self.channel = ChildChannel()
        self.process: WorkerProcess | None = None
        self.restart: asyncio.TimerHandle | None = None
        self.restart_count = 0
        self.ready_since: float | None = None
        self.was_ready = False
        self.is_told_to_drain = False
        self.last_end = ""
        self.waited_for_disk = 0.0
        """When it was last seen to wait for its disk."""
        self.is_disk_logged = False


class ProcessPool:
    """`kind` is what its processes are called in the log, `number_field` their number, and `variable` where
    in their environment they find what they are told."""

    kind: ClassVar[str]
    number_field: ClassVar[str]
    variable: ClassVar[str]

    def __init__(
        self,
        board: Board,
        clock: Clock,
        command: Sequence[str],
        environment: Mapping[str, str],
        times: PoolTimes,
    ) -> None:
        self._board = board
        self._clock = clock
        self._command = command
        self._environment = environment
        self._times = times
        self._loop = asyncio.get_running_loop()
        self._members = [
            _Member(
                number,
                slot,
                Backoff(times.backoff_first_seconds, times.backoff_max_seconds, times.healthy_seconds),
            )
            for number, slot in enumerate(board)
        ]
        self._ticked = 0.0
        self._watched_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_draining = False
        self._changed = asyncio.Event()
        self._haste = 0
        self._is_orderly = True

    # -- what differs from one kind to another -------------------------------------------------------------

    def tell(self, number: int) -> Told:
        """What the process of a slot is told beyond its channel and the board."""
        raise NotImplementedError

    def returned(self, number: int, handed: list[Handed]) -> None:
        """Connections that were in the channel of a process which will not receive them."""
        raise NotImplementedError

    def before_clear(self, slot: Slot) -> None:
        """The last look at what a process that has ended had said."""

    def ticked(self) -> None:
        """Called after each look at all processes, until they are brought to their end."""

    # -- how they are --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._members)

    @property
    def board(self) -> Board:
        return self._board

    @property
    def senders(self) -> list[socket.socket]:
        """The sending ends of the channels, which stay what they are over all lives."""
        return [member.channel.sender for member in self._members]

    def start(self) -> None:
        self._ticked = self._watched_since = self._clock.monotonic()
        for member in self._members:
            self._spawn(member)
        self._timer = self._loop.call_later(self._times.tick_seconds, self._tick)

    def was_ready(self, number: int) -> bool:
        """Whether it has ever been."""
        return self._members[number].was_ready or self._board.slot(number).state is WorkerState.READY

    def restart_count(self, number: int) -> int:
        return self._members[number].restart_count

    def pids(self) -> list[int]:
        return [member.process.pid for member in self._members if member.process is not None]

    def all_beat(self) -> bool:
        """Whether every process there should be is alive, for a watchdog above this one."""
        return all(self._is_well(member) for member in self._members)

    def _is_well(self, member: _Member) -> bool:
        if member.process is None:
            return self.is_draining or member.slot.state is WorkerState.REFUSED
        return self._silent_for(member, self._clock.monotonic()) <= self._times.hung_seconds

    def _silent_for(self, member: _Member, now: float) -> float:
        return now - max(member.slot.beat_ms / 1000, self._watched_since, member.waited_for_disk)

    # -- the lives of a process ----------------------------------------------------------------------------

    def _spawn(self, member: _Member) -> None:
        member.restart = None
        slot = member.slot
        slot.clear()
        slot.reason = member.last_end
        slot.beat_ms = int(self._clock.monotonic() * 1000)
        slot.state = WorkerState.STARTING
        channel_fd, board_fd = member.channel.receiver.fileno(), self._board.fd
        told = self.tell(member.number)
        try:
            process = WorkerProcess(
                self._command,
                self._environment,
                self.variable,
                {**told.spec, "channel_fd": channel_fd, "board_fd": board_fd},
                (channel_fd, board_fd, *told.fds),
                lambda process: self._ended(member, process),
            )
        except OSError as error:
            self._start_later(member, f"could not be started: {error}", can_repeat=True)
            return
        member.process = process
        logger.info("%s started", self.kind, extra=self._fields(member, worker_pid=process.pid))

    def _ended(self, member: _Member, process: WorkerProcess) -> None:
        assert member.process is process
        member.process = None
        code = process.exit_code
        assert code is not None
        slot = member.slot
        reason = slot.reason if slot.reason != member.last_end else ""
        # One that was on its way up had nothing to put in order.
        was_starting = slot.state is WorkerState.STARTING
        self.before_clear(slot)
        slot.clear()
        told = describe_end(code)
        if self.is_draining:
            self._is_orderly = self._is_orderly and (code == 0 or was_starting)
            logger.info("%s %s", self.kind, told, extra=self._fields(member))
        elif code == EXIT_REFUSED:
            slot.reason = reason or "no reason given"
            slot.state = WorkerState.REFUSED
            logger.error("%s refuses to serve: %s", self.kind, slot.reason, extra=self._fields(member))
        else:
            self._start_later(member, f"{told}: {reason}" if reason else told)
        member.ready_since = None
        self._take_back(member)
        self._changed.set()

    def _start_later(self, member: _Member, told: str, can_repeat: bool = False) -> None:
        """`can_repeat`: a repetition of the same failure is not worth another line of the log."""
        before = member.last_end
        healthy_for = 0.0 if member.ready_since is None else self._clock.monotonic() - member.ready_since
        wait = member.backoff.ended(healthy_for)
        member.restart_count += 1
        member.slot.clear()
        member.slot.reason = told
        # As it can be read there, which may be less.
        member.last_end = member.slot.reason
        level = logging.DEBUG if can_repeat and member.last_end == before else logging.WARNING
        logger.log(level, "%s %s", self.kind, told, extra=self._fields(member, again_in_seconds=wait))
        member.restart = self._loop.call_later(wait, self._spawn, member)

    # -- watching ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._clock.monotonic()
        if now - self._ticked > self._times.tick_seconds + self._times.fresh_seconds / 2:
            self._watched_since = now
        self._ticked = now
        for member in self._members:
            if member.process is None:
                self._take_back(member)
            else:
                self._watch(member, member.process, now)
        if not self.is_draining:
            self.ticked()
        self._timer = self._loop.call_later(self._times.tick_seconds, self._tick)

    def _watch(self, member: _Member, process: WorkerProcess, now: float) -> None:
        slot = member.slot
        state = slot.state
        if state is WorkerState.READY and member.ready_since is None:
            member.ready_since = now
            member.was_ready = True
            member.last_end = ""
        if self.is_draining and not member.is_told_to_drain:
            member.is_told_to_drain = member.channel.send_drain()
        silent_for = now - max(slot.beat_ms / 1000, self._watched_since)
        if silent_for > self._times.fresh_seconds:
            self._look_for_disk_wait(member, process, now, silent_for)
        is_up = state not in (WorkerState.STARTING, WorkerState.REPLAYING)
        # The word to drain stays where one that is still on its way up may see it.
        if silent_for > self._times.fresh_seconds or not (is_up or self.is_draining):
            self._take_back(member)
        hung_for = self._silent_for(member, now)
        if hung_for > (self._times.hung_seconds if is_up else self._times.start_seconds):
            told = self._fields(member, silent_seconds=silent_for)
            logger.error("%s hangs and is killed", self.kind, extra=told)
            process.signal(signal.SIGKILL)

    def _look_for_disk_wait(
        self, member: _Member, process: WorkerProcess, now: float, silent_for: float
    ) -> None:
        if not process.is_in_disk_wait():
            return
        if now - member.waited_for_disk > self._times.hung_seconds:
            member.is_disk_logged = False
        member.waited_for_disk = now
        if silent_for > self._times.hung_seconds and not member.is_disk_logged:
            member.is_disk_logged = True
            told = self._fields(member, silent_seconds=silent_for)
            logger.warning("%s: does not answer: it waits for its disk", self.kind, extra=told)

    def _take_back(self, member: _Member) -> None:
        taken = member.channel.take_back()
        if any(handed.drains for handed in taken):
            member.is_told_to_drain = False
        handed = [one for one in taken if not one.drains]
        if handed:
            self.returned(member.number, handed)

    def _fields(self, member: _Member, **more: object) -> Mapping[str, object]:
        return fields(**{self.number_field: member.number}, **more)

    # -- the end -------------------------------------------------------------------------------------------

    def hasten(self) -> None:
        """A second wish to end: do not wait until the deadline. A third: kill."""
        self._haste += 1
        self._changed.set()

    async def drain(self) -> bool:
        """Bring all processes to their end; whether each ended by itself and without complaint."""
        self.is_draining = True
        for member in self._members:
            if member.restart is not None:
                member.restart.cancel()
                member.restart = None
            if member.process is not None:
                member.is_told_to_drain = member.channel.send_drain()
        if not await self._wait_for_ends(self._times.drain_seconds, haste=1):
            self._signal_all(signal.SIGTERM)
            if not await self._wait_for_ends(self._times.grace_seconds, haste=2):
                logger.error("some %ss are killed", self.kind, extra=fields(pids=self.pids()))
                self._signal_all(signal.SIGKILL)
                await self._wait_for_ends(None, haste=None)
        if self._timer is not None:
            self._timer.cancel()
        for member in self._members:
            self._take_back(member)
        return self._is_orderly

    def close(self) -> None:
        """After the drain: nobody sends any more."""
        for member in self._members:
            member.channel.close()

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


class WorkerPool(ProcessPool):
    """`spec` is what every worker is told, `on_returned` takes connections that a worker will not answer."""

    kind = "worker"
    number_field = "shard"
    variable = "TOPICSD_WORKER"

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
        super().__init__(board, clock, command, environment, times)
        self._spec = spec
        self._on_returned = on_returned
        self.doors = ShardDoors(board, clock, times.fresh_seconds, self.senders)

    def tell(self, number: int) -> Told:
        return Told({**self._spec, "shard": number, "shards": len(self)})

    def returned(self, number: int, handed: list[Handed]) -> None:
        self._on_returned(number, handed)

    def refusal(self, shard: int) -> Refusal | None:
        return self.doors.refusal(shard)

    def is_serving(self, shard: int) -> bool:
        return self.doors.refusal(shard) is None

    async def drain(self) -> bool:
        self.doors.is_draining = True
        return await super().drain()
