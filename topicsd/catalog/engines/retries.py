"""Retries of a request to a catalog. They are safe because each verb may be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from shared.runtime.retries import Pauses, Retries, repeat
from topicsd.catalog.catalog import CatalogUnavailable

T = TypeVar("T")

PAUSES: Final = Pauses(0.01, 1.0)


def repeat_request(attempt: Callable[[], T], retries: Retries) -> T:
    """Call `attempt` until it raises no CatalogUnavailable, or the time of `retries` has passed."""
    return repeat(attempt, retries, CatalogUnavailable, PAUSES)
