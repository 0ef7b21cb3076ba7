"""Pools of processes, one process for each slot of a part of a board: start, watch, restart and stop.

P1  A process that ends without a stop request is restarted after a wait that doubles each time (`Backoff`).
    The way it ended stays on the board until it is ready again.
P2  A process that ends with `EXIT_REFUSED` found data that it will not serve. It is not restarted, and its
    reason stays on the board, which this process writes while the slot has no process.
P3  Connections that a process without a heartbeat has not received after `fresh_seconds` are taken back.
    After `hung_seconds` the process is killed. A process that is not ready yet has `start_seconds`. Time in a
    system call that waits for the disk does not count as silence: the disk is slow, and a new process would
    wait for it too.
P4  Silence counts only while this process itself was running: after a pause of the whole machine, no process
    is killed for the time of the pause.
P5  The end: a drain message after all connections that were handed over; SIGTERM at the deadline or when
    hastened; SIGKILL after a last grace period.
P6  A process that has not yet seen on the board that a process ended may send connections into its channel.
    They are taken back too.
P7  A pool can grow, and retire its last slots. The channel of a retired slot stays for a later process of the
    same number, because other processes hold its sending end.

`Backoff` limits the load of a worker that crashes during its start, and restarts at once a worker that was
healthy for a while.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final, NamedTuple

from router.supervision.worker_process import ChildChannel, WorkerProcess, describe_end
from shared.ipc.board import Board, Slot, WorkerState
from shared.ipc.handoff import HandoffMessage
from shared.runtime.clock import Clock
from shared.runtime.log_setup import fields

HELD_START_SECONDS: Final = 0.02


class Backoff:
    """The wait before an ended process is restarted.

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
        """Return the seconds to wait; `healthy_for` is how long the ended process had been ready."""
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


class StartParameters(NamedTuple):
    """The parameters of a process at its start, and the descriptors that it inherits for them."""

    spec: Mapping[str, object]
    fds: tuple[int, ...] = ()


class _Member:
    """The state of one slot, kept across restarts of its process."""

    def __init__(self, number: int, slot: Slot, backoff: Backoff, channel: ChildChannel) -> None:
        self.number = number
        self.slot = slot
        self.backoff = backoff
        self.channel = channel
        self.is_retired = False
        self.process: WorkerProcess | None = None
        self.restart: asyncio.TimerHandle | None = None
        self.restart_count = 0
        self.ready_since: float | None = None
        self.was_ready = False
        self.is_drain_sent = False
        self.last_end = ""
        self.disk_wait_at = 0.0
        """The last time at which it was seen waiting for its disk."""
        self.is_disk_logged = False


class ProcessPool:
    """Processes of one kind, one for each slot of a board.

    `kind` is the name of such a process in the log, `number_field` the log field of its number, and
    `variable` the environment variable that holds its parameters.
    """

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
        slot_numbers: range | None = None,
    ) -> None:
        """Make a pool for `slot_numbers` of the board, by default for all shards."""
        slot_numbers = range(len(board)) if slot_numbers is None else slot_numbers
        self._board = board
        self._clock = clock
        self._command = command
        self._environment = environment
        self._times = times
        self._first_slot = slot_numbers.start
        self._loop = asyncio.get_running_loop()
        self._members = [self._new_member(number, ChildChannel()) for number in range(len(slot_numbers))]
        """The slots, first those in use, then retired ones."""
        self.senders = [member.channel.sender for member in self._members]
        """The sending ends of the channels, which stay the same across restarts (P7)."""
        self._ticked = 0.0
        self._watched_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.is_draining = False
        self._changed = asyncio.Event()
        self._stop_requests = 0
        self._is_orderly = True
        self._holds = 0
        """Reasons not to start processes now."""

    # -- what differs between kinds ------------------------------------------------------------------------

    def start_parameters(self, number: int) -> StartParameters:
        """Return the parameters of a slot's process, apart from its channel and the board."""
        raise NotImplementedError

    def on_returned(self, number: int, handed: list[HandoffMessage]) -> None:
        """Handle connections that were in the channel of a process which will not receive them."""
        raise NotImplementedError

    def before_clear(self, slot: Slot) -> None:
        """Read the slot of an ended process for the last time, before it is cleared."""

    def on_tick(self) -> None:
        """Run after each check of all processes, until the drain begins."""

    # -- state of the processes ----------------------------------------------------------------------------

    def __len__(self) -> int:
        return sum(not member.is_retired for member in self._members)

    @property
    def board(self) -> Board:
        return self._board

    def _new_member(self, number: int, channel: ChildChannel) -> _Member:
        times = self._times
        backoff = Backoff(times.backoff_first_seconds, times.backoff_max_seconds, times.healthy_seconds)
        return _Member(number, self._board.slot(self._first_slot + number), backoff, channel)

    def start(self) -> None:
        self._ticked = self._watched_since = self._clock.monotonic()
        for member in self._members:
            self._spawn(member)
        self._timer = self._loop.call_later(self._times.tick_seconds, self._tick)

    def was_ready(self, number: int) -> bool:
        """Return whether the process has ever been ready."""
        member = self._members[number]
        return member.was_ready or member.slot.state is WorkerState.READY

    def restart_count(self, number: int) -> int:
        return self._members[number].restart_count

    def pids(self) -> list[int]:
        return _pids(self._members)

    def all_alive(self) -> bool:
        """Return whether every expected process is alive, for the watchdog of the service manager."""
        return all(self._is_well(member) for member in self._members)

    def _is_well(self, member: _Member) -> bool:
        if member.process is None:
            return self.is_draining or member.is_retired or member.slot.state is WorkerState.REFUSED
        return self._silent_for(member, self._clock.monotonic()) <= self._times.hung_seconds

    def _silent_for(self, member: _Member, now: float) -> float:
        return now - max(member.slot.beat_ms / 1000, self._watched_since, member.disk_wait_at)

    # -- start and end of a process ------------------------------------------------------------------------

    @contextmanager
    def hold_starts(self) -> Iterator[None]:
        """Start no process inside the block; processes that are due are started after it."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1

    def grow(self, count: int) -> None:
        """Start processes until there are `count`; the board has allocated their slots."""
        for number in range(len(self), count):
            if number == len(self._members):
                self._members.append(self._new_member(number, ChildChannel()))
                self.senders.append(self._members[number].channel.sender)
            else:
                self._members[number] = self._new_member(number, self._members[number].channel)
            self._spawn(self._members[number])

    def _spawn(self, member: _Member) -> None:
        if self._holds:
            member.restart = self._loop.call_later(HELD_START_SECONDS, self._spawn, member)
            return
        member.restart = None
        slot = member.slot
        slot.clear()
        slot.reason = member.last_end
        slot.beat_ms = int(self._clock.monotonic() * 1000)
        slot.state = WorkerState.STARTING
        channel_fd, board_fd = member.channel.receiver.fileno(), self._board.fd
        parameters = self.start_parameters(member.number)
        try:
            process = WorkerProcess(
                self._command,
                self._environment,
                self.variable,
                {**parameters.spec, "channel_fd": channel_fd, "board_fd": board_fd},
                (channel_fd, board_fd, *parameters.fds),
                lambda process: self._on_end(member, process),
            )
        except OSError as error:
            self._start_later(member, f"cannot start: {error}", can_repeat=True)
            return
        member.process = process
        logger.info("%s: started", self.kind, extra=self._fields(member, worker_pid=process.pid))

    def _on_end(self, member: _Member, process: WorkerProcess) -> None:
        assert member.process is process
        member.process = None
        code = process.exit_code
        assert code is not None
        slot = member.slot
        reason = slot.reason if slot.reason != member.last_end else ""
        # A process that was still starting has nothing to shut down in order.
        was_starting = slot.state is WorkerState.STARTING
        self.before_clear(slot)
        slot.clear()
        end = describe_end(code)
        if self.is_draining or member.is_retired:
            self._is_orderly = self._is_orderly and (code == 0 or was_starting)
            logger.info("%s: stopped: %s", self.kind, end, extra=self._fields(member))
        elif code == EXIT_REFUSED:
            slot.reason = reason or "no reason given"
            slot.state = WorkerState.REFUSED
            logger.error(
                "%s: cannot serve its data, not restarted: %s",
                self.kind,
                slot.reason,
                extra=self._fields(member),
            )
        else:
            self._start_later(member, f"{end}: {reason}" if reason else end)
        member.ready_since = None
        self._take_back(member)
        self._changed.set()

    def _start_later(self, member: _Member, reason: str, can_repeat: bool = False) -> None:
        """Restart the process after its backoff.

        With `can_repeat`, a repetition of the same failure is logged at DEBUG only.
        """
        before = member.last_end
        healthy_for = 0.0 if member.ready_since is None else self._clock.monotonic() - member.ready_since
        wait = member.backoff.ended(healthy_for)
        member.restart_count += 1
        member.slot.clear()
        member.slot.reason = reason
        # As read back from the board, which may truncate it.
        member.last_end = member.slot.reason
        level = logging.DEBUG if can_repeat and member.last_end == before else logging.WARNING
        logger.log(
            level,
            "%s: down, restarting: %s",
            self.kind,
            reason,
            extra=self._fields(member, again_in_seconds=wait),
        )
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
            self.on_tick()
        self._timer = self._loop.call_later(self._times.tick_seconds, self._tick)

    def _watch(self, member: _Member, process: WorkerProcess, now: float) -> None:
        slot = member.slot
        state = slot.state
        if state is WorkerState.READY and member.ready_since is None:
            member.ready_since = now
            member.was_ready = True
            member.last_end = ""
        if (self.is_draining or member.is_retired) and not member.is_drain_sent:
            member.is_drain_sent = member.channel.send_drain()
        silent_for = now - max(slot.beat_ms / 1000, self._watched_since)
        if silent_for > self._times.fresh_seconds:
            self._check_disk_wait(member, process, now, silent_for)
        is_up = state not in (WorkerState.STARTING, WorkerState.REPLAYING)
        # A drain message stays in the channel of a starting process, which may still read it.
        if silent_for > self._times.fresh_seconds or not (is_up or self.is_draining):
            self._take_back(member)
        hung_for = self._silent_for(member, now)
        if hung_for > (self._times.hung_seconds if is_up else self._times.start_seconds):
            silence = self._fields(member, silent_seconds=silent_for)
            logger.error("%s: hung, sending SIGKILL: no heartbeat", self.kind, extra=silence)
            process.signal(signal.SIGKILL)

    def _check_disk_wait(
        self, member: _Member, process: WorkerProcess, now: float, silent_for: float
    ) -> None:
        if not process.is_in_disk_wait():
            return
        if now - member.disk_wait_at > self._times.hung_seconds:
            member.is_disk_logged = False
        member.disk_wait_at = now
        if silent_for > self._times.hung_seconds and not member.is_disk_logged:
            member.is_disk_logged = True
            silence = self._fields(member, silent_seconds=silent_for)
            logger.warning("%s: no heartbeat, not killed: waiting for its disk", self.kind, extra=silence)

    def _take_back(self, member: _Member) -> None:
        messages = member.channel.take_back()
        if any(message.is_drain for message in messages):
            member.is_drain_sent = False
        handed = [message for message in messages if not message.is_drain]
        if handed:
            self.on_returned(member.number, handed)

    def _fields(self, member: _Member, **more: object) -> Mapping[str, object]:
        return fields(**{self.number_field: member.number}, **more)

    # -- the end -------------------------------------------------------------------------------------------

    def hasten(self) -> None:
        """On the second stop request, skip the wait for the deadline; on the third, kill."""
        self._stop_requests += 1
        self._changed.set()

    async def drain(self) -> bool:
        """End all processes; return whether each exited with code 0 or was still starting."""
        self.is_draining = True
        await self._end(self._members)
        if self._timer is not None:
            self._timer.cancel()
        for member in self._members:
            self._take_back(member)
        return self._is_orderly

    async def retire(self, count: int) -> None:
        """End the processes of all slots from `count` on for good, and wait until they have ended."""
        retired = self._members[count:]
        for member in retired:
            member.is_retired = True
        await self._end(retired)

    async def _end(self, members: Sequence[_Member]) -> None:
        for member in members:
            if member.restart is not None:
                member.restart.cancel()
                member.restart = None
            if member.process is not None:
                member.is_drain_sent = member.channel.send_drain()
        if await self._wait_for_ends(members, self._times.drain_seconds, stop_requests=1):
            return
        _signal_all(members, signal.SIGTERM)
        if await self._wait_for_ends(members, self._times.grace_seconds, stop_requests=2):
            return
        logger.error("%s: not stopped in time, sending SIGKILL", self.kind, extra=fields(pids=_pids(members)))
        _signal_all(members, signal.SIGKILL)
        await self._wait_for_ends(members, None, stop_requests=None)

    def close(self) -> None:
        """Close the channels, after the drain, when no process sends any more."""
        for member in self._members:
            member.channel.close()

    async def _wait_for_ends(
        self, members: Sequence[_Member], seconds: float | None, stop_requests: int | None
    ) -> bool:
        """Return whether all processes ended in time and before `stop_requests` further stop requests."""
        deadline = None if seconds is None else self._loop.time() + seconds
        while _pids(members):
            if stop_requests is not None and self._stop_requests >= stop_requests:
                return False
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                return not _pids(members)
        return True


def _pids(members: Sequence[_Member]) -> list[int]:
    return [member.process.pid for member in members if member.process is not None]


def _signal_all(members: Sequence[_Member], number: signal.Signals) -> None:
    for member in members:
        if member.process is not None:
            member.process.signal(number)
