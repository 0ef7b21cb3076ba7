"""The timer that measures the pressure on a shard, and applies the stages to its log and its wake queue.

The worker starts it; a shard without a started timer has no pressure.
"""

from __future__ import annotations

from shared.runtime.clock import Clock
from shared.runtime.disk_thread import Loop
from topicsd.engine.wakeups.governor import TICK_SECONDS, Pressure, Sample, Stages, follow, stages
from topicsd.engine.wakeups.wake_queue import Watch
from topicsd.log.group_commit import GroupCommit


class PressureGauge:
    """The pressure of one shard, measured every `TICK_SECONDS`."""

    def __init__(self, clock: Clock, loop: Loop, watch: Watch, log: GroupCommit) -> None:
        self._clock = clock
        self._loop = loop
        self._watch = watch
        self._log = log
        self._looked_at = 0.0
        self._sync_seconds = 0.0
        self._runs = False
        self.pressure = Pressure()

    @property
    def stages(self) -> Stages:
        return stages(self.pressure)

    def start(self) -> None:
        assert not self._runs
        self._runs = True
        self._begin(self._clock.monotonic())

    def stop(self) -> None:
        """Stop measuring, and end all delays and pauses."""
        if self._runs:
            self._runs = False
            self.pressure = Pressure()
            self._obey()

    def _begin(self, now: float) -> None:
        self._looked_at = now
        self._sync_seconds = self._log.sync_seconds_at(now)
        self._loop.call_later(TICK_SECONDS, self._look)

    def _look(self) -> None:
        if not self._runs:
            return
        now = self._clock.monotonic()
        elapsed = now - self._looked_at
        sample = Sample(
            len(self._watch.ready),
            elapsed - TICK_SECONDS,
            (self._log.sync_seconds_at(now) - self._sync_seconds) / max(elapsed, TICK_SECONDS),
        )
        self.pressure = follow(self.pressure, sample)
        self._obey()
        self._begin(now)

    def _obey(self) -> None:
        asked = self.stages
        self._watch.obey(asked.coalesce_seconds, asked.pauses)
        self._log.obey(asked.sync_window_seconds, asked.refuses)
