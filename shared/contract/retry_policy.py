"""The back-off of a queue: how long a job that was not done waits for its next delivery.

After the delivery `n` a job waits `base_ms * factor ** (n - 1)`, at most `max_ms`.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from shared.contract.errors import Refusal, invalid
from shared.text.units import duration_ms

WAIT_MS_MAX: Final = 86_400_000
FACTOR_MAX: Final = 1000.0
_FACTOR_DEFAULT: Final = 2.0
_MAX_MS_DEFAULT: Final = 3_600_000


class RetryPolicy(msgspec.Struct, frozen=True):
    """A back-off as a configuration has it."""

    base_ms: int
    factor: float
    max_ms: int

    def wait_ms(self, deliveries: int) -> int:
        """Return how long a job waits after so many deliveries.

        >>> policy = RetryPolicy(1000, 2.0, 5000)
        >>> [policy.wait_ms(deliveries) for deliveries in (1, 2, 3, 4, 10_000)]
        [1000, 2000, 4000, 5000, 5000]
        """
        try:
            return int(min(self.base_ms * self.factor ** (deliveries - 1), self.max_ms))
        except OverflowError:
            return self.max_ms


class RetryPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A back-off as a client sends it. Durations may be texts with a unit."""

    base_ms: int | str
    factor: float = _FACTOR_DEFAULT
    max_ms: int | str | UnsetType = UNSET


def retry_policy(patch: RetryPatch) -> RetryPolicy | Refusal:
    """Return the back-off that a client wants, or a refusal that names the field and its bound."""
    base_ms = duration_ms("retry.base_ms", patch.base_ms)
    if isinstance(base_ms, Refusal):
        return base_ms
    if not 1 <= base_ms <= WAIT_MS_MAX:
        return invalid("retry.base_ms", f"must be from 1 to {WAIT_MS_MAX}, got {base_ms}", WAIT_MS_MAX)
    unchecked = max(base_ms, _MAX_MS_DEFAULT) if patch.max_ms is UNSET else patch.max_ms
    max_ms = duration_ms("retry.max_ms", unchecked)
    if isinstance(max_ms, Refusal):
        return max_ms
    if not base_ms <= max_ms <= WAIT_MS_MAX:
        rule = f"must be from retry.base_ms, which is {base_ms}, to {WAIT_MS_MAX}, got {max_ms}"
        return invalid("retry.max_ms", rule, WAIT_MS_MAX)
    if not 1 <= patch.factor <= FACTOR_MAX:
        return invalid("retry.factor", f"must be from 1 to {FACTOR_MAX:g}, got {patch.factor:g}")
    return RetryPolicy(base_ms, patch.factor, max_ms)
