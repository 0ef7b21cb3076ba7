"""Count the requests to a catalog for shared topics, and notice when it does not answer."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from topicsd.catalog.catalog import CatalogUnavailable
from topicsd.catalog.shared.shared_catalog import SharedCatalog

VERBS: Final = tuple(
    name
    for name, verb in vars(SharedCatalog).items()
    if callable(verb) and not name.startswith("_") and name != "close"
)


class CatalogTotals:
    """The requests to one catalog since it was opened; for all threads of a process."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        """By verb."""
        self.failures = 0
        self.away_since: float | None = None
        """The monotonic time of the first request without an answer since the last answer."""

    def call(self, verb: str, request: Callable[..., Any], *args: Any) -> Any:
        is_answered = True
        try:
            return request(*args)
        except CatalogUnavailable:
            is_answered = False
            raise
        finally:
            # A refusal is an answer, too.
            with self._lock:
                self.requests[verb] += 1
                if is_answered:
                    self.away_since = None
                else:
                    self.failures += 1
                    self.away_since = self._monotonic() if self.away_since is None else self.away_since

    @property
    def away_seconds(self) -> int:
        """Return the seconds since which the catalog does not answer, at least 1 then; 0 while it does."""
        since = self.away_since
        return 0 if since is None else max(1, int(self._monotonic() - since))


class _MeteredCatalog:
    def __init__(self, catalog: SharedCatalog, totals: CatalogTotals) -> None:
        self.url = catalog.url
        self.close = catalog.close
        for verb in VERBS:
            setattr(self, verb, partial(totals.call, verb, getattr(catalog, verb)))


def metered(catalog: SharedCatalog, totals: CatalogTotals) -> SharedCatalog:
    """Return the catalog with its requests counted."""
    return cast(SharedCatalog, _MeteredCatalog(catalog, totals))
