"""How much a topic's delivery is worth, as a number from -1000 to 1000, and in which of five bands that is.

A priority orders delivery and nothing else. It is made of what the topic was given, or of how recently
somebody consumed it, and of how long it has waited for its turn:

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
# What was consumed just now is worth this much more, and half of it after each half-life.
RECENT: Final = 500.0
HALF_LIFE_MS: Final = 30_000
FORGOTTEN_MS: Final = 300_000
GAIN_PER_SECOND: Final = 100.0

FLOORS: Final = (0.0, 250.0, 500.0, 750.0)
"""The lowest priority of each band but the lowest, which holds what is negative."""
WEIGHTS: Final = (1, 1, 2, 4, 8)
"""How many turns each band has in a round, the lowest first."""
TOP: Final = len(FLOORS)


def base_priority(priority: int | None, is_auto: bool, idle_ms: float) -> float:
    """Without what waiting adds. `idle_ms` is how long nobody has consumed it; a clock may have stepped."""
    if priority is not None:
        return float(min(max(priority, -PRIORITY_MAX), PRIORITY_MAX))
    if not is_auto or idle_ms >= FORGOTTEN_MS:
        return 0.0
    return RECENT * math.exp2(-max(idle_ms, 0) / HALF_LIFE_MS)


def effective_priority(base: float, waited_seconds: float) -> float:
    """Whoever waits is worth more each second, so that nobody waits for ever."""
    return min(base + GAIN_PER_SECOND * waited_seconds, float(PRIORITY_MAX))


def band_of(priority: float) -> int:
    return bisect_right(FLOORS, priority)


def one_band_lower(priority: float) -> float:
    """What it is worth while it is to stand back by one band: in the one below, as far up there as before.

    >>> [band_of(one_band_lower(one)) for one in (1000, 750, 400, 0, -1000)]
    [3, 3, 1, 0, 0]
    """
    band = band_of(priority)
    if band == 0:
        return priority
    # The top band is no wider than the others but for its last number.
    return min(priority - 250.0, FLOORS[band - 1] - 1.0)
