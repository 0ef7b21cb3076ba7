"""Seqs are never used twice, also when a crash of the machine takes the tail of a log.

A class below fsync acks before the disk has it. So no such topic gives out a seq above its *ceiling*,
which a HeadWatermark on the disk has raised ahead of need. After an unclean end the head resumes at the
ceiling, and the seqs in between are a lost range that readers are told. When a topic is quiet and
synced its ceiling comes down to its head, so that an idle topic never reports a loss that was none.

Pure: numbers in, numbers out. Must not know: frames, files.
"""

from __future__ import annotations

from typing import NamedTuple

STEP_MIN = 256
AHEAD_MS = 2000
QUIET_MS = 1000


class Ceiling(NamedTuple):
    value: int
    mark: int
    """The head at which the next one is due: half of the way."""


def raised_ceiling(head: int, raised_head: int, elapsed_ms: int) -> Ceiling:
    """The ceiling for a head that has come from `raised_head` in this time: two seconds of that rate ahead.

    A shorter time than a second counts as one, so that a burst does not make a rate of millions.
    """
    rate_ms = (head - raised_head) / max(elapsed_ms, 1000)
    step = max(STEP_MIN, int(rate_ms * AHEAD_MS))
    return Ceiling(head + step, head + step // 2)


def is_quiet(last_ts: int, now_ms: int) -> bool:
    """Nothing was appended for a while; also when the clock has stepped back since."""
    return now_ms - last_ts >= QUIET_MS or now_ms < last_ts
