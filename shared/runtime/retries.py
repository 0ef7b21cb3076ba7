"""Retries of a request to another server: growing and random pauses, bounded in time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Retries(NamedTuple):
    """How long a request is repeated; `wait` may raise to end the retries early."""

    monotonic: Callable[[], float]
    wait: Callable[[float], object]
    seconds: float
    """The time after which no further try is made."""
    random: Callable[[], float] = random.random


class Pauses(NamedTuple):
    """The upper bound of the pause after the first failure, which doubles with each one, and its maximum."""

    first_seconds: float
    seconds_max: float


def repeat(attempt: Callable[[], T], retries: Retries, retried: type[Exception], pauses: Pauses) -> T:
    """Call `attempt` until it does not raise `retried`, or the time of `retries` has passed."""
    until = retries.monotonic() + retries.seconds
    pause = pauses.first_seconds
    while True:
        try:
            return attempt()
        except retried:
            # Any part of the pause: clients that failed together must not return together.
            seconds = pause * retries.random()
            if retries.monotonic() + seconds >= until:
                raise
            retries.wait(seconds)
            pause = min(2 * pause, pauses.seconds_max)
