"""One job of a queue that somebody had or that came with a delay: what is known of it, and its state.

Must not know: other jobs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

READY: Final = 0
IN_FLIGHT: Final = 1
DELAYED: Final = 2
PARKED: Final = 3
BLOCKED: Final = 4
SENT: Final = 5
ASIDE: Final = (PARKED, SENT)


class Job:
    __slots__ = ("deadline", "deliveries", "is_leaving", "lease", "node", "reason", "state")

    def __init__(self) -> None:
        self.state = READY
        self.deliveries = 0
        self.lease = 0
        """The number under which it was handed out last, 0 when that counts no more."""
        self.deadline = 0
        """When a lease runs out or a delay is over."""
        self.node = ""
        self.reason = ""
        """Why it was given back."""
        self.is_leaving = False


class Held(NamedTuple):
    """What a job was, to put it back."""

    seq: int
    state: int
    deliveries: int
    lease: int
    deadline: int
    node: str
    reason: str


class Claimed(NamedTuple):
    seq: int
    lease: int
    deliveries: int


class Counts(NamedTuple):
    ready: int
    in_flight: int
    delayed: int
    parked: int
    dead_lettered: int
    blocked: int = 0
