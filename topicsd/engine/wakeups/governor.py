"""The pressure on a shard, from 0 to 1, and the stages of the response to it.

The response delays deliveries and acks, but loses nothing and changes no order.

Ten times a second three values are sampled, each as a fraction of its maximum and smoothed over about half a
second (`Pressure`):

* depth: the topics that were ready and not served in their turn of the loop. `READY_FULL` topics delay a
  waiter by about the 5 ms that delivery may take. Topics that are held by a pause or by coalescing do not
  count, or pressure would sustain itself.
* delay: the lateness of the loop. Timers of an idle loop are up to 1 ms late; 5 ms is the maximum.
* busy: the fraction of time in which the disk thread was syncing.

The level combines them (`level`): 1 - (1 - depth)(1 - delay)(1 - BUSY_WEIGHT * busy). Each of the first two
means that clients wait for the loop, so each alone can raise the level to 1, and together they raise it
further. A busy disk alone is no sign of overload: group commit begins the next sync when the last one ends,
so a single writer that waits for its syncs keeps the thread always busy, and delaying a single writer would
save nothing. So the weight of `busy` is below the first stage, and it only adds to the other two.

The stages (`stages`), each in addition to the previous ones:

* above 0.2, changes are coalesced for up to 20 ms before waiters are called;
* above 0.4, syncs begin at least 0.5 to 10 ms apart, so that more writers share one sync;
* above 0.8 until below 0.6, routes are served one band lower and deliveries of negative priority pause;
* from 0.95, writes are refused while the commit queue is long.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TICK_SECONDS: Final = 0.1
READY_FULL: Final = 256
DELAY_SECONDS_IDLE: Final = 0.001
DELAY_SECONDS_FULL: Final = 0.005
BUSY_WEIGHT: Final = 0.15
SMOOTHING: Final = 0.25

COALESCE_FROM: Final = 0.2
COALESCE_SECONDS_MAX: Final = 0.02
WIDEN_FROM: Final = 0.4
WINDOW_SECONDS: Final = (0.0005, 0.01)
PAUSE_FROM: Final = 0.8
PAUSE_UNTIL: Final = 0.6
REFUSE_FROM: Final = 0.95


class LoadSample(NamedTuple):
    """One measurement of the load."""

    ready_count: int
    delay_seconds: float
    busy_share: float


class Pressure(NamedTuple):
    """The three parts, each from 0 to 1, and whether deliveries pause.

    A pause begins at a higher level than it ends.
    """

    depth: float = 0.0
    delay: float = 0.0
    busy: float = 0.0
    is_paused: bool = False

    @property
    def level(self) -> float:
        return 1 - (1 - self.depth) * (1 - self.delay) * (1 - BUSY_WEIGHT * self.busy)


class Stages(NamedTuple):
    """The response to a pressure; none by default."""

    coalesce_seconds: float = 0.0
    sync_window_seconds: float = 0.0
    is_paused: bool = False
    is_refusing: bool = False


def next_pressure(before: Pressure, sample: LoadSample) -> Pressure:
    """Return the pressure after one more sample."""
    late = sample.delay_seconds - DELAY_SECONDS_IDLE
    after = Pressure(
        _smooth(before.depth, sample.ready_count / READY_FULL),
        _smooth(before.delay, late / (DELAY_SECONDS_FULL - DELAY_SECONDS_IDLE)),
        _smooth(before.busy, sample.busy_share),
    )
    is_paused = after.level > PAUSE_FROM or (before.is_paused and after.level >= PAUSE_UNTIL)
    return after._replace(is_paused=is_paused)


def stages(pressure: Pressure) -> Stages:
    level = pressure.level
    window = 0.0
    if level > WIDEN_FROM:
        narrow, wide = WINDOW_SECONDS
        window = narrow + (wide - narrow) * _share_above(level, WIDEN_FROM)
    return Stages(
        COALESCE_SECONDS_MAX * _share_above(level, COALESCE_FROM),
        window,
        pressure.is_paused,
        level >= REFUSE_FROM,
    )


def _smooth(before: float, share: float) -> float:
    return before + (min(max(share, 0.0), 1.0) - before) * SMOOTHING


def _share_above(level: float, bound: float) -> float:
    """Return the level's share of the range from `bound` to 1."""
    return max(0.0, level - bound) / (1 - bound)
