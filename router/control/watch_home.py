"""The home shard of a new watch session, and the cap on sessions.

The home is the shard that owns most topics of the session: their records are written there and need not cross
a link. Among equals it is the shard with the fewest sessions, which distributes sessions of distributed
topics. A shard that is being retired gets no session. On a node without shards the home is a broker that
is ready, and the session ends with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from shared.contract.errors import Refusal, cannot_check, limit_reached, no_answer
from shared.ipc.exact_counts import ReservedCount
from shared.ipc.placement import OwnerLookup


class ShardRefusals(Protocol):
    """The workers, as `router/accept/worker_channels.py` presents them."""

    def __len__(self) -> int: ...
    def refusal(self, owner: int) -> Refusal | None: ...
    def any_broker(self) -> int | None: ...
    def none_ready(self, is_broker: bool) -> Refusal: ...


class Placing(OwnerLookup, Protocol):
    """The placement, as `shared/ipc/shared_placement.py` presents it."""

    def is_of_rule(self, shard: int) -> bool: ...


class WatchHome:
    def __init__(self, shards: ShardRefusals, placement: Placing, sessions: ReservedCount) -> None:
        self._shards = shards
        self._placement = placement
        self.sessions = sessions

    def reserve(self, names: Sequence[str]) -> int | Refusal:
        """Return the home of a session of these topics, and count the session there from now on."""
        home = self._home_of(names) if len(self._shards) else self._shards.any_broker()
        if home is None:
            return self._shards.none_ready(is_broker=True)
        refusal = self._shards.refusal(home)
        if refusal is not None:
            return refusal
        is_allowed = self.sessions.reserve(home)
        if is_allowed:
            return home
        if is_allowed is None:
            return cannot_check("max_watch_sessions", "a shard is not ready")
        bound = self.sessions.bound
        return limit_reached("max_watch_sessions", bound, "no more watch sessions can be created")

    def unreachable(self, home: int) -> Refusal:
        return self._shards.refusal(home) or no_answer(home)

    def _home_of(self, names: Sequence[str]) -> int:
        owned = Counter(map(self._placement.owner_of, names))
        all_homes = filter(self._placement.is_of_rule, range(len(self._shards)))
        homes = [shard for shard in owned if self._placement.is_of_rule(shard)] or all_homes
        return min(homes, key=lambda shard: (-owned[shard], self.sessions.of(shard), shard))
