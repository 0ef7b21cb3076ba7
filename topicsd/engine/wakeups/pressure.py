"""The timer that measures the pressure on a shard, and applies the stages to its log and its wake queue.

The worker starts it; a shard without a started timer has no pressure.
"""

from __future__ import annotations

from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.engine.wakeups.governor import TICK_SECONDS, LoadSample, Pressure, Stages, next_pressure, stages
from topicsd.engine.wakeups.wake_queue import WakeQueue
from topicsd.log.group_commit import GroupCommit


class PressureGauge:
    """The pressure of one shard, measured every `TICK_SECONDS`."""

    def __init__(self, clock: Clock, loop: Loop, wake_queue: WakeQueue, log: GroupCommit) -> None:
        self._clock = clock
        self._loop = loop
        self._wake_queue = wake_queue
        self._log = log
        self._measured_at = 0.0
        self._sync_seconds = 0.0
        self._is_running = False
        self.pressure = Pressure()

    @property
    def stages(self) -> Stages:
        return stages(self.pressure)

    def start(self) -> None:
        assert not self._is_running
        self._is_running = True
        self._start_interval(self._clock.monotonic())

    def stop(self) -> None:
        """Stop measuring, and end all delays and pauses."""
        if self._is_running:
            self._is_running = False
            self.pressure = Pressure()
            self._apply()

    def _start_interval(self, now: float) -> None:
        self._measured_at = now
        self._sync_seconds = self._log.sync_seconds_at(now)
        self._loop.call_later(TICK_SECONDS, self._measure)

    def _measure(self) -> None:
        if not self._is_running:
            return
        now = self._clock.monotonic()
        elapsed = now - self._measured_at
        sample = LoadSample(
            len(self._wake_queue.ready),
            elapsed - TICK_SECONDS,
            (self._log.sync_seconds_at(now) - self._sync_seconds) / max(elapsed, TICK_SECONDS),
        )
        self.pressure = next_pressure(self.pressure, sample)
        self._apply()
        self._start_interval(now)

    def _apply(self) -> None:
        response = self.stages
        self._wake_queue.apply_pressure(response.coalesce_seconds, response.is_paused)
        self._log.apply_pressure(response.sync_window_seconds, response.is_refusing)
