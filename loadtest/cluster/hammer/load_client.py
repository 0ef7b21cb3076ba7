"""What producers and consumers of one client process share: connections, routing, counts, traces."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, Final

from loadtest.cluster.hammer.http_client import Clients, NoAnswer, NodeAnswer
from loadtest.cluster.hammer.ledger import Ledger
from loadtest.cluster.hammer.routing import OwnerSets, Partition, Router, reader_sets
from loadtest.cluster.hammer.tally import KindTally, Tally
from loadtest.cluster.run_folder import Lines, RunFolder
from loadtest.cluster.scenario import Scenario

PROBE_SECONDS: Final = 0.5


class LoadClient:
    """The state of one client process. `partitions` are its own: it writes and reads them alone."""

    def __init__(
        self,
        number: int,
        scenario: Scenario,
        folder: RunFolder,
        ports: dict[str, int],
        owners: OwnerSets,
        token: str,
    ) -> None:
        self.number = number
        self.scenario = scenario
        self.token = token
        """Begins the name of each producer of this run."""
        self.partitions: list[Partition] = list(owners)[number :: scenario.client_processes]
        self.clients = Clients(ports, scenario.request_timeout_seconds)
        self.ledger = Ledger()
        self.interval = Tally()
        self.total = Tally()
        self.ending = asyncio.Event()
        """Set when producers shall end."""
        self._samples = Lines(folder.client_samples)
        self._events = Lines(folder.remap_events)
        self._traces = Lines(folder.traces)
        self._random = random.Random(scenario.seed * 1000 + number)
        read_sets = reader_sets(owners, scenario.node_names, scenario.readers)
        self.writes = Router(owners, scenario.selection, self._on_remap)
        self.reads = (
            self.writes
            if read_sets is owners
            else Router(read_sets, scenario.selection, lambda event: self._on_remap({**event, "of": "reads"}))
        )

    async def request(self, kind: str, node: str, body: bytes, partitions: int) -> NodeAnswer | None:
        """Send a request; return None, and mark the node as down, when there is no response."""
        tally: KindTally = getattr(self.interval, kind)
        router = self.writes if kind == "produce" else self.reads
        sent, began = time.time(), time.perf_counter()
        tally.first_at = tally.first_at or sent
        router.on_start(node)
        try:
            answer: NodeAnswer | None = await self.clients.post(node, f"/{kind}", body)
        except NoAnswer as failure:
            answer, reason = None, str(failure)
        finally:
            router.on_end(node)
        ms = (time.perf_counter() - began) * 1000
        # The interval may have ended during the request.
        tally = getattr(self.interval, kind)
        tally.requests += 1
        if answer is None:
            tally.fail(reason.partition(":")[0])
            self.mark_down(node, reason)
        elif answer.status == 503 and b'"results"' not in answer.body:
            # No broker took the request: its node is about to start or to end.
            self.mark_down(node, "503")
        self._trace(kind, node, sent, ms, answer, partitions, len(body))
        return answer

    def _trace(
        self,
        kind: str,
        node: str,
        sent: float,
        ms: float,
        answer: NodeAnswer | None,
        partitions: int,
        size: int,
    ) -> None:
        if self._random.random() >= self.scenario.trace_share:
            return
        self._traces.add(
            {
                "at": round(sent, 6),
                "client": self.number,
                "kind": kind,
                "node": node,
                "partitions": partitions,
                "request_bytes": size,
                "status": answer.status if answer is not None else 0,
                "response_bytes": len(answer.body) if answer is not None else 0,
                "ms": round(ms, 3),
            }
        )

    def mark_down(self, node: str, reason: str) -> None:
        for router in {self.writes, self.reads}:
            if node in router.nodes:
                router.mark_down(node, reason)

    async def probe(self) -> None:
        """Ask the nodes that are down for their health, and use them again when they answer."""
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            for node in sorted(self.writes.down | self.reads.down):
                try:
                    answer = await self.clients.get(node, "/health")
                except NoAnswer:
                    continue
                if answer.status == 200:
                    self.writes.mark_up(node)
                    if self.reads is not self.writes:
                        self.reads.mark_up(node)

    async def sample(self) -> None:
        """Write a line with the counts of each interval."""
        while True:
            await asyncio.sleep(self.scenario.sample_seconds)
            self.end_interval()

    def end_interval(self) -> None:
        self._samples.add({"at": round(time.time(), 3), "client": self.number, **self.interval.summary()})
        self.total.merge(self.interval)
        self.interval = Tally()

    def _on_remap(self, event: dict[str, Any]) -> None:
        self._events.add({"at": round(time.time(), 6), "client": self.number, **event})

    def close(self) -> None:
        self.clients.close()
        for lines in (self._samples, self._events, self._traces):
            lines.close()
