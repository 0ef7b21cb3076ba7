"""Retries of a request to another server: growing and random pauses, bounded in time."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Retries(NamedTuple):
    """How long a request is repeated; `wait` and `on_failure` may raise to end the retries early.

    They also end when `wait` returns True, as the one of a `threading.Event` does when the process ends.
    """

    monotonic: Callable[[], float]
    wait: Callable[[float], object]
    seconds: float
    """The time after which no further try is made."""
    random: Callable[[], float] = random.random
    on_failure: Callable[[Exception, int], object] = lambda error, count: None
    """Called with each failure that may be retried, and the number of tries so far."""


class Pauses(NamedTuple):
    """The upper bound of the pause after the first failure, which doubles with each one, and its maximum."""

    first_seconds: float
    seconds_max: float


def repeat(attempt: Callable[[], T], retries: Retries, retried: type[Exception], pauses: Pauses) -> T:
    """Call `attempt` until it does not raise `retried`, or the time of `retries` has passed."""
    until = retries.monotonic() + retries.seconds
    pause = pauses.first_seconds
    for count in itertools.count(1):
        try:
            return attempt()
        except retried as error:
            retries.on_failure(error, count)
            # Any part of the pause: clients that failed together must not return together.
            seconds = pause * retries.random()
            if retries.monotonic() + seconds >= until:
                raise
            if retries.wait(seconds) is True:
                raise
            pause = min(2 * pause, pauses.seconds_max)
    raise AssertionError
