"""Priorities of delivery: a number from -1000 to 1000 for each topic, in one of five bands.

A priority affects the order of delivery and nothing else. It has two parts: the configured priority, or a
value by how recently the topic was consumed; and an addition for the time that the topic waits for its turn:

>>> base_priority(None, is_auto=True, idle_ms=30_000)
250.0
>>> effective_priority(250.0, waited_seconds=2.5), band_of(500.0)
(500.0, 3)
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

PRIORITY_MAX: Final = 1000
# The automatic priority of a topic that was consumed just now; it halves with each half-life.
RECENT: Final = 500.0
HALF_LIFE_MS: Final = 30_000
FORGOTTEN_MS: Final = 300_000
GAIN_PER_SECOND: Final = 100.0

FLOORS: Final = (0.0, 250.0, 500.0, 750.0)
"""The lowest priority of each band above the lowest; the lowest band holds the negative priorities."""
WEIGHTS: Final = (1, 1, 2, 4, 8)
"""The turns of each band in a round, the lowest band first."""
TOP: Final = len(FLOORS)


def base_priority(priority: int | None, is_auto: bool, idle_ms: float) -> float:
    """Return the priority of a topic without the addition for waiting.

    `idle_ms` is the time since the topic was last consumed; it is negative if the clock stepped back.
    """
    if priority is not None:
        return float(min(max(priority, -PRIORITY_MAX), PRIORITY_MAX))
    if not is_auto or idle_ms >= FORGOTTEN_MS:
        return 0.0
    return RECENT * math.exp2(-max(idle_ms, 0) / HALF_LIFE_MS)


def effective_priority(base: float, waited_seconds: float) -> float:
    """Return the priority with the addition for waiting, which prevents starvation."""
    return min(base + GAIN_PER_SECOND * waited_seconds, float(PRIORITY_MAX))


def band_of(priority: float) -> int:
    return bisect_right(FLOORS, priority)


def one_band_lower(priority: float) -> float:
    """Return the priority lowered by one band, at the same height within the lower band.

    >>> [band_of(one_band_lower(one)) for one in (1000, 750, 400, 0, -1000)]
    [3, 3, 1, 0, 0]
    """
    band = band_of(priority)
    if band == 0:
        return priority
    # The top band includes 1000 and so is wider by one number: cap the result below its own floor.
    return min(priority - 250.0, FLOORS[band - 1] - 1.0)
