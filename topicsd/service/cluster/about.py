"""What a broker knows of itself: who it is, and where its numbers are."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from shared.runtime.clock import Clock
from topicsd.broker.broker import Broker
from topicsd.broker.upkeep.upkeep_counts import UpkeepCounts
from topicsd.broker.write.batcher import BatchLimits
from topicsd.catalog.shared.metered_catalog import CatalogTotals
from topicsd.service.request_counts import RequestCounts
from topicsd.store.metered import MeteredStore


class BrokerIdentity(NamedTuple):
    node: str
    """The id of the node, which is that of its data directory."""
    number: int
    """Of the broker, from 0 in each node."""
    address: str
    """`http://host:port`, where other nodes and clients reach the node."""
    weight: float
    roles: tuple[str, ...]
    started_ms: int

    @property
    def broker_id(self) -> str:
        """Return the name of the broker, unique in the cluster.

        >>> BrokerIdentity("9f3c2a7701d4b8e6", 0, "http://10.0.0.7:4000", 1.0, ("read",), 0).broker_id
        'broker-0-9f3c2a7701d4b8e6'
        """
        return f"broker-{self.number}-{self.node}"

    @property
    def host(self) -> str:
        return urlsplit(self.address).hostname or ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.address)
        return parts.port or (443 if parts.scheme == "https" else 80)


def no_upkeep() -> UpkeepCounts | None:
    return None


class BrokerSources(NamedTuple):
    """A broker, and the numbers of what it uses."""

    identity: BrokerIdentity
    broker: Broker
    limits: BatchLimits
    store: MeteredStore
    catalog_totals: CatalogTotals
    clock: Clock
    started: float
    """The monotonic time of its start."""
    request_counts: Callable[[], RequestCounts]
    connections: Callable[[], int]
    upkeep: Callable[[], UpkeepCounts | None] = no_upkeep
    """The counts of compaction and vacuum, where this broker does them."""
