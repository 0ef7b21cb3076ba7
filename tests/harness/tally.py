"""How many ends and faults the sweeps of this process tried, and what to say when one of them fails.

Promises: an `attempt` counts once, tried and, when it raises, failed; the exception carries the line that
plays it again. `summary` is for the end of a test run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TRIED: Counter[str] = Counter()
FAILED: Counter[str] = Counter()


def _no_steps() -> list[str]:
    return []


@contextmanager
def attempt(kind: str, replay: str, steps: Callable[[], list[str]] = _no_steps) -> Iterator[None]:
    """One try of this kind; `steps` is asked, after a failure, for what had been done."""
    TRIED[kind] += 1
    try:
        yield
    except Exception as error:
        FAILED[kind] += 1
        error.add_note(f"replay: {replay}")
        if done := steps():
            error.add_note(f"the script had done: {'; '.join(done)}")
        raise


def summary() -> list[str]:
    """One line a kind."""
    return [f"{kind}: {count:,} tried, {FAILED[kind]:,} failed" for kind, count in sorted(TRIED.items())]
