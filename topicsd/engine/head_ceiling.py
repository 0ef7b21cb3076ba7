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
QUIET_SECONDS = 1.0
# A burst is no rate: a step is at most this many times what has come since the last one.
GROWTH = 8
# A head that comes half of the way in less than this is faster than the background sync.
SOON_MS = 200


class Ceiling(NamedTuple):
    value: int
    mark: int
    """The head at which the next one is due: half of the way."""
    is_soon_needed: bool = False
    """It has to be on the disk before the next background sync would put it there."""


def raised_ceiling(head: int, raised_head: int, elapsed_ms: int) -> Ceiling:
    """For a head that has come from `raised_head` in this time: two seconds of that rate ahead."""
    advance = head - raised_head
    rate_ms = advance / max(elapsed_ms, 1)
    step = max(STEP_MIN, min(int(rate_ms * AHEAD_MS), advance * GROWTH))
    return Ceiling(head + step, head + step // 2, rate_ms * SOON_MS > step)
