"""The number of crashes and faults that sweeps tried, and the notes on a failed one.

Promises: an `attempt` counts once as tried and, when it raises, once as failed; the exception carries the
line that replays it. `summary` is printed at the end of a test run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ATTEMPTS: Counter[str] = Counter()
FAILURES: Counter[str] = Counter()


def _no_steps() -> list[str]:
    return []


@contextmanager
def attempt(kind: str, replay: str, steps: Callable[[], list[str]] = _no_steps) -> Iterator[None]:
    """Count one attempt of this kind; on failure, note the steps that `steps` returns."""
    ATTEMPTS[kind] += 1
    try:
        yield
    except Exception as error:
        FAILURES[kind] += 1
        error.add_note(f"replay: {replay}")
        if done := steps():
            error.add_note(f"the script had done: {'; '.join(done)}")
        raise


def summary() -> list[str]:
    """Return one line for each kind."""
    return [f"{kind}: {count:,} tried, {FAILURES[kind]:,} failed" for kind, count in sorted(ATTEMPTS.items())]
