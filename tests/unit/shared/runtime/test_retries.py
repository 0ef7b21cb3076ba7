"""Retries of requests: bounded in time, and ended with the process."""

from __future__ import annotations

import pytest

from shared.runtime.retries import Pauses, Retries, repeat

PAUSES = Pauses(1.0, 4.0)


class Attempts:
    """A request that fails, and the waits between its tries; the n-th wait reports the end of the process."""

    def __init__(self, ends_at: int | None = None) -> None:
        self.now = 0.0
        self.tries = 0
        self.waits: list[float] = []
        self._ends_at = ends_at

    def __call__(self) -> None:
        self.tries += 1
        raise TimeoutError(f"try {self.tries}")

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        return len(self.waits) == self._ends_at

    def repeat(self, seconds: float) -> None:
        repeat(self, Retries(lambda: self.now, self.wait, seconds, lambda: 1.0), TimeoutError, PAUSES)


def test_pauses_double_up_to_their_maximum_until_the_time_has_passed() -> None:
    attempts = Attempts()
    with pytest.raises(TimeoutError, match="try 5"):
        attempts.repeat(15.0)
    assert attempts.waits == [1.0, 2.0, 4.0, 4.0]


def test_the_end_of_the_process_ends_the_retries_with_the_last_error() -> None:
    attempts = Attempts(ends_at=2)
    with pytest.raises(TimeoutError, match="try 2"):
        attempts.repeat(15.0)
    assert attempts.waits == [1.0, 2.0]
