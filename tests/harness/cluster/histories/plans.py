"""What kinds of topics a history has."""

from __future__ import annotations

from random import Random
from typing import Any, Final, NamedTuple

TAGS: Final = (None, "x", "y")
LEASE_MS: Final = 10_000

# Clients retry for a long time; a write that is repeated later than this is applied twice.
_EACH: Final[dict[str, Any]] = {"idempotency_window_ms": 3_600_000}
_KINDS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {},
    {"cap_records": 30},
    {"ttl_ms": 60_000},
    {"type": "queue", "lease_ms": LEASE_MS},
    {"type": "queue", "lease_ms": LEASE_MS, "leases_durable": True},
    {"type": "queue", "lease_ms": LEASE_MS, "order_by": "tag"},
)
_DURABILITIES: Final = ("fsync", "fsync", "disk")


class Plan(NamedTuple):
    """One topic, with the configuration that its first write gives it."""

    name: str
    config: dict[str, Any]

    @property
    def is_durable(self) -> bool:
        """Whether an acknowledged change survives a power cut."""
        return bool(self.config.get("durability") == "fsync")

    @property
    def is_queue(self) -> bool:
        return self.config.get("type") == "queue"

    @property
    def has_durable_leases(self) -> bool:
        return bool(self.config.get("leases_durable"))

    @property
    def lease_ms(self) -> int:
        return LEASE_MS


def choose_plans(rng: Random, count: int, has_queues: bool) -> list[Plan]:
    """Return plans of some kinds; only plain topics without queues and caps if not `has_queues`."""
    if not has_queues:
        return [Plan(f"t{number}", _EACH) for number in range(count)]
    return [
        Plan(f"t{number}", {**_EACH, "durability": rng.choice(_DURABILITIES), **rng.choice(_KINDS)})
        for number in range(count)
    ]
