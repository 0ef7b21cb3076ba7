"""Consumers: each follows its partitions, with one request under way at each node that they are read at."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec

from loadtest.cluster.hammer.http_client import NoAnswer
from loadtest.cluster.hammer.load_client import LoadClient
from loadtest.cluster.hammer.records import runs_of
from loadtest.cluster.hammer.routing import Partition

IDLE_SECONDS: Final = 0.02
RETRY_SECONDS: Final = 0.1


class ReadRecord(msgspec.Struct):
    offset: int
    value: str = ""


class ReadPartition(msgspec.Struct):
    """The result of one partition in a response of `/consume`."""

    topic: str
    partition: int
    ok: bool = False
    records: list[ReadRecord] = []
    next_offset: int = 0
    high_watermark: int = 0
    error_type: str = ""


class ConsumeAnswer(msgspec.Struct):
    results: list[ReadPartition] = []


_DECODER: Final = msgspec.json.Decoder(ConsumeAnswer)


class Consumer:
    """The partitions of one consumer, and how far each is read."""

    def __init__(self, client: LoadClient, partitions: list[Partition]) -> None:
        self._client = client
        self._next = dict.fromkeys(partitions, 1)
        self._ends = dict.fromkeys(partitions, 1)
        """The offset to read up to, even when this run adds nothing."""
        self._busy: set[Partition] = set()

    async def find_start(self) -> None:
        """Begin at the heads, or at the first record when the run only reads."""
        for partition in self._next:
            result = None
            while result is None:
                node = self._client.reads.first_alive(partition)
                if node is not None:
                    result = await self._head(node, partition)
                if result is None:
                    await asyncio.sleep(RETRY_SECONDS)
            self._ends[partition] = result.high_watermark + 1
            if self._client.scenario.producers:
                self._next[partition] = result.high_watermark + 1

    async def _head(self, node: str, partition: Partition) -> ReadPartition | None:
        requests = [
            {"topic": partition[0], "partition": partition[1], "fetch_offset": 1, "partition_max_bytes": 1}
        ]
        body = {"topic_partitions": requests, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1}
        # Outside of the counts: this is a question before the load.
        try:
            answer = await self._client.clients.post(node, "/consume", msgspec.json.encode(body))
        except NoAnswer:
            return None
        if answer.status != 200:
            return None
        result = _DECODER.decode(answer.body).results[0]
        return result if result.ok else None

    @property
    def is_done(self) -> bool:
        """Whether everything that was acknowledged is read."""
        ledger = self._client.ledger
        return all(
            offset >= max(ledger.acked_end(partition), self._ends[partition])
            for partition, offset in self._next.items()
        )

    async def follow(self, node: str) -> None:
        """Read the partitions whose place of reading this node is, until the task is cancelled."""
        while True:
            mine = [
                partition
                for partition in self._next
                if partition not in self._busy and self._client.reads.first_alive(partition) == node
            ]
            if not mine:
                await asyncio.sleep(IDLE_SECONDS)
                continue
            # While a request is under way, the loop of another node must not read the same records.
            self._busy.update(mine)
            try:
                is_served = await self._fetch(node, mine)
            finally:
                self._busy.difference_update(mine)
            if not is_served:
                await asyncio.sleep(RETRY_SECONDS)

    async def _fetch(self, node: str, partitions: list[Partition]) -> bool:
        scenario = self._client.scenario
        requests = [
            {
                "topic": partition[0],
                "partition": partition[1],
                "fetch_offset": self._next[partition],
                "partition_max_bytes": scenario.partition_max_bytes,
            }
            for partition in partitions
        ]
        body = {
            "topic_partitions": requests,
            "max_wait_ms": scenario.max_wait_ms,
            "min_bytes": scenario.min_bytes,
            "max_bytes": scenario.max_bytes,
        }
        began = time.perf_counter()
        answer = await self._client.request("consume", node, msgspec.json.encode(body), len(partitions))
        if answer is None:
            return False
        tally = self._client.interval.consume
        try:
            results = _DECODER.decode(answer.body).results
        except msgspec.DecodeError:
            results = []
        if not results:
            tally.fail(str(answer.status))
            return False
        received_us = time.time_ns() // 1000
        if any(result.records for result in results):
            # A wait at the tail is not a latency of the broker.
            tally.latencies.add((time.perf_counter() - began) * 1e6)
        for result in results:
            if not result.ok:
                tally.fail(f"{answer.status} {result.error_type}".rstrip())
            else:
                self._take((result.topic, result.partition), result, received_us)
        return all(result.ok for result in results)

    def _take(self, partition: Partition, result: ReadPartition, received_us: int) -> None:
        """Check and count the records of a partition."""
        client, records = self._client, result.records
        if not records:
            return
        expected = self._next[partition]
        offsets = [record.offset for record in records]
        if offsets != list(range(expected, expected + len(records))):
            problem = f"{partition[0]}:{partition[1]}: offsets {offsets[0]} to {offsets[-1]} instead of"
            client.ledger.violate(f"{problem} {len(records)} from {expected} on")
        self._next[partition] = offsets[-1] + 1
        tally = client.interval.consume
        tally.records += len(records)
        tally.bytes += sum(len(record.value) for record in records)
        tally.last_at = time.time()
        try:
            runs = runs_of(offsets[0], [record.value for record in records], client.scenario.record_bytes)
        except ValueError as damage:
            client.ledger.violate(f"{partition[0]}:{partition[1]}: {damage}")
            return
        for run in runs:
            if run.producer.startswith(client.token):
                client.ledger.read(partition, run)
                if client.scenario.consume == "tail":
                    client.interval.end_to_end.add(received_us - run.sent_us, run.count)
