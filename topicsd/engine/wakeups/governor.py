"""How hard pressed a shard is, from 0 to 1, and what is done about it: delivery and acks get later, but
nothing is lost and no order changes.

Ten times a second three things are looked at, each a share of what is too much, smoothed over about half a
second (`Pressure`):

* depth: what was ready and not served in its turn of the loop. `READY_FULL` of it keep somebody waiting for
  about the 5 ms that delivery may take. What waits because it was told to, in a pause or to be coalesced, is
  none of it, or pressure would keep itself up.
* delay: how late the loop comes to what is due. A millisecond is what its timers are out by when idle, and
  5 ms is too much.
* busy: the share of its time in which the thread that syncs was at it.

They are combined by what each leaves over (`level`): 1 - (1 - depth)(1 - delay)(1 - BUSY_WEIGHT * busy).
Either of the first two alone means that clients wait for the loop, and can take the level to 1; together they
say more than each. A busy disk alone means nothing: group commit has the next sync begin where the last one
ended, so a single writer that waits for its syncs keeps the thread always at work, and with nobody else there
is nothing to save by making it wait. So its weight stays below the first stage, and it only adds to what the
others say.

The stages (`stages`), each on top of those before:

* over 0.2, what has changed is gathered for up to 20 ms before who waits for it is called;
* over 0.4, syncs begin 0.5 to 10 ms apart at least, so that more writers share one;
* over 0.8 until below 0.6, routes stand back by one band and deliveries of negative priority pause;
* from 0.95, writes are refused that find much waiting for the disk already.
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


class Sample(NamedTuple):
    """What one look finds."""

    ready_count: int
    delay_seconds: float
    busy_share: float


class Pressure(NamedTuple):
    """The three parts, each from 0 to 1, and whether there is a pause: it begins higher than it ends."""

    depth: float = 0.0
    delay: float = 0.0
    busy: float = 0.0
    pauses: bool = False

    @property
    def level(self) -> float:
        return 1 - (1 - self.depth) * (1 - self.delay) * (1 - BUSY_WEIGHT * self.busy)


class Stages(NamedTuple):
    """What is to be done about it; nothing by default."""

    coalesce_seconds: float = 0.0
    sync_window_seconds: float = 0.0
    pauses: bool = False
    refuses: bool = False


def follow(before: Pressure, sample: Sample) -> Pressure:
    """The pressure after one more look."""
    late = sample.delay_seconds - DELAY_SECONDS_IDLE
    after = Pressure(
        _smooth(before.depth, sample.ready_count / READY_FULL),
        _smooth(before.delay, late / (DELAY_SECONDS_FULL - DELAY_SECONDS_IDLE)),
        _smooth(before.busy, sample.busy_share),
    )
    pauses = after.level > PAUSE_FROM or (before.pauses and after.level >= PAUSE_UNTIL)
    return after._replace(pauses=pauses)


def stages(pressure: Pressure) -> Stages:
    level = pressure.level
    window = 0.0
    if level > WIDEN_FROM:
        narrow, wide = WINDOW_SECONDS
        window = narrow + (wide - narrow) * _share_above(level, WIDEN_FROM)
    return Stages(
        COALESCE_SECONDS_MAX * _share_above(level, COALESCE_FROM),
        window,
        pressure.pauses,
        level >= REFUSE_FROM,
    )


def _smooth(before: float, share: float) -> float:
    return before + (min(max(share, 0.0), 1.0) - before) * SMOOTHING


def _share_above(level: float, bound: float) -> float:
    """How much of what is above the bound the level fills."""
    return max(0.0, level - bound) / (1 - bound)
