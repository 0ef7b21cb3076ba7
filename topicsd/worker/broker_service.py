"""The broker of a broker process: its endpoints, its place in the cluster, its numbers, and its drain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from shared.ipc.board import Slot
from shared.runtime.clock import Clock
from topicsd.broker.repeats import Repeats
from topicsd.broker.upkeep.upkeep_counts import UpkeepCounts
from topicsd.service.call import Call
from topicsd.service.cluster.about import BrokerSources
from topicsd.service.cluster.broker_metrics import report
from topicsd.service.cluster.endpoints import BrokerEndpoints
from topicsd.service.cluster.membership import Membership
from topicsd.service.request_counts import RequestCounts
from topicsd.worker.board_publisher import publish_requests
from topicsd.worker.broker_start import OpenBroker, open_upkeep
from topicsd.worker.spec import Spec

CHECK_SECONDS = 0.02
END_SECONDS = 2.0

logger = logging.getLogger("topicsd.broker")


class BrokerService:
    """`request_counts` and `connections` return the numbers of the process that serves the requests."""

    def __init__(
        self,
        spec: Spec,
        opened: OpenBroker,
        clock: Clock,
        request_counts: Callable[[], RequestCounts],
        connections: Callable[[], int],
    ) -> None:
        self._opened = opened
        self.broker = opened.broker
        self._repeats = Repeats(clock)
        self._upkeep = open_upkeep(spec, opened, clock, self._repeats)
        self._sources = BrokerSources(
            opened.identity,
            opened.broker,
            opened.limits,
            opened.store,
            opened.catalog_totals,
            clock,
            clock.monotonic(),
            request_counts,
            connections,
            self._upkeep_counts,
        )
        lookups = opened.pools.lookups
        self.operations: Mapping[str, Callable[[Call], None]] = BrokerEndpoints(
            self._sources, opened.catalog, lookups
        ).table
        loop = asyncio.get_running_loop()
        self._membership: Membership | None = None
        if opened.identity.number == 0:
            self._membership = Membership(
                opened.identity, opened.catalog, lookups, loop, lambda: report(self._sources)
            )

    def start(self) -> None:
        if self._membership is not None:
            self._membership.start()
        if self._upkeep is not None:
            self._upkeep.start()

    def _upkeep_counts(self) -> UpkeepCounts | None:
        return None if self._upkeep is None else self._upkeep.counts

    async def drain(self, seconds: float, is_skipped: Callable[[], bool]) -> bool:
        """Leave the cluster, end upkeep, and settle the writes that wait; return whether all was in time.

        Nothing is lost without it: a write that is not settled was not acknowledged.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        ends = [asyncio.Event(), asyncio.Event()]
        has_left, has_no_upkeep = ends
        if self._membership is None:
            has_left.set()
        else:
            self._membership.leave(has_left.set)
        if self._upkeep is None:
            has_no_upkeep.set()
        else:
            self._repeats.end()
            self._upkeep.stop(has_no_upkeep.set)
        self.broker.close()
        while not self.broker.is_drained:
            if is_skipped() or loop.time() > deadline:
                return False
            await asyncio.sleep(CHECK_SECONDS)
        try:
            async with asyncio.timeout(min(END_SECONDS, max(deadline - loop.time(), 0.0))):
                for end in ends:
                    await end.wait()
        except TimeoutError:
            # The last heartbeat and the claims expire.
            logger.warning("broker: the catalog or the store does not answer, not waiting for it")
        return True

    def close(self) -> None:
        self._opened.close()

    def publish(self, slot: Slot) -> None:
        broker, counts = self.broker, self.broker.counts
        slot.broker_records_in_total = counts.produce_records
        slot.broker_bytes_in_total = counts.produce_bytes
        slot.broker_records_out_total = counts.consume_records
        slot.broker_bytes_out_total = counts.consume_bytes
        slot.broker_refused_total = counts.produce_errors
        slot.broker_blobs_total = broker.batcher.totals.blobs
        slot.broker_blob_bytes_total = broker.batcher.totals.bytes_appended
        slot.broker_pending_bytes = broker.batcher.pending_bytes
        slot.broker_pending_ms = int(broker.batcher.pending_seconds * 1000)
        slot.broker_tail_hits_total = broker.cache.hits
        slot.broker_tail_misses_total = broker.cache.misses
        slot.broker_waiting_topics = broker.heads.waiting
        self._publish_store(slot)

    def _publish_store(self, slot: Slot) -> None:
        publish_requests(slot, self._opened.store.totals)
        catalog = self._opened.catalog_totals
        slot.has_catalog = 1
        slot.catalog_requests_total = catalog.requests.total()
        slot.catalog_failures_total = catalog.failures
        slot.catalog_away_seconds = catalog.away_seconds
