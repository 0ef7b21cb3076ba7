"""Retries of a request to a catalog, bounded in time. They are safe because each verb may be repeated."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from topicsd.catalog.catalog import CatalogUnavailable

T = TypeVar("T")

FIRST_PAUSE_SECONDS: Final = 0.01
PAUSE_SECONDS_MAX: Final = 1.0


class RetryPolicy(NamedTuple):
    """How long a request is repeated; `wait` may raise to end the retries early."""

    monotonic: Callable[[], float]
    wait: Callable[[float], object]
    seconds: float = 10.0
    """The time after which no further try is made."""
    random: Callable[[], float] = random.random


def repeat_request(attempt: Callable[[], T], policy: RetryPolicy) -> T:
    """Call `attempt` until it raises no CatalogUnavailable, or the time of the policy has passed."""
    until = policy.monotonic() + policy.seconds
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return attempt()
        except CatalogUnavailable:
            # Any part of the pause: nodes that failed together must not return together.
            seconds = pause * policy.random()
            if policy.monotonic() + seconds >= until:
                raise
            policy.wait(seconds)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)
