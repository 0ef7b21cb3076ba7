"""A histogram of durations with buckets that grow: a percentile is at most 3 % above the true one."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

STEPS: Final = 32
"""Buckets for each doubling."""
PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


class Latencies(msgspec.Struct):
    """Durations in microseconds."""

    count: int = 0
    total_us: float = 0.0
    max_us: float = 0.0
    buckets: dict[int, int] = {}

    def add(self, us: float, count: int = 1) -> None:
        us = max(us, 1.0)
        self.count += count
        self.total_us += us * count
        self.max_us = max(self.max_us, us)
        bucket = math.ceil(math.log2(us) * STEPS)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def merge(self, other: Latencies) -> None:
        self.count += other.count
        self.total_us += other.total_us
        self.max_us = max(self.max_us, other.max_us)
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def percentile(self, share: float) -> float:
        """Return the duration in us that this share of all is at most."""
        rank, passed = math.ceil(share * self.count), 0
        for bucket in sorted(self.buckets):
            passed += self.buckets[bucket]
            if passed >= rank:
                return min(2 ** (bucket / STEPS), self.max_us)
        return 0.0

    def summary(self) -> dict[str, Any]:
        """Return count, mean and percentiles in ms.

        >>> latencies = Latencies()
        >>> for us in range(1000, 2000): latencies.add(us)
        >>> latencies.summary()["p50_ms"], latencies.summary()["max_ms"]
        (1.512, 1.999)
        """
        if not self.count:
            return {"count": 0}
        percentiles = {
            f"{name}_ms": round(self.percentile(share) / 1000, 3) for name, share in PERCENTILES.items()
        }
        mean = round(self.total_us / self.count / 1000, 3)
        return {"count": self.count, "mean_ms": mean, **percentiles, "max_ms": round(self.max_us / 1000, 3)}
