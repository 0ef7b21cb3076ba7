"""Producers: each sends requests of records for its partitions, one at a time."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Final

import msgspec

from loadtest.cluster.hammer.http_client import NodeAnswer
from loadtest.cluster.hammer.ledger import Acked
from loadtest.cluster.hammer.load_client import LoadClient
from loadtest.cluster.hammer.records import records_json
from loadtest.cluster.hammer.routing import Partition

RETRY_SECONDS: Final = 0.1


class Produced(msgspec.Struct):
    """The result of one partition in a response of `/produce`."""

    topic: str = ""
    partition: int = 0
    ok: bool = False
    start_offset: int = 0
    end_offset: int = 0
    count: int = 0
    error_type: str = ""


class ProduceAnswer(msgspec.Struct):
    results: list[Produced] = []


_DECODER: Final = msgspec.json.Decoder(ProduceAnswer)


async def produce(client: LoadClient, producer: int, first_partition: int) -> None:
    """Write to the partitions of a client in turn, from one of them on, until the client ends."""
    scenario = client.scenario
    name = f"{client.token}.{client.number}-{producer}"
    start = first_partition % len(client.partitions)
    numbers = dict.fromkeys(client.partitions, 0)
    pause = 0.0
    if scenario.records_per_second:
        each = scenario.records_per_second / scenario.producers
        pause = scenario.records_per_request / each
    next_at = time.perf_counter()
    for partition in itertools.cycle((*client.partitions[start:], *client.partitions[:start])):
        if pause and (delay := next_at - time.perf_counter()) > 0:
            await asyncio.sleep(delay)
        next_at += pause
        if client.ending.is_set():
            return
        node = client.writes.choose(partition)
        if node is None:
            client.interval.produce.fail("no owner is up")
            await asyncio.sleep(RETRY_SECONDS)
            continue
        number = numbers[partition]
        numbers[partition] = number + scenario.records_per_request
        if not await send(client, node, partition, name, number):
            await asyncio.sleep(RETRY_SECONDS)


async def send(client: LoadClient, node: str, partition: Partition, name: str, number: int) -> bool:
    """Send one request of records, from `number` on; return whether they were acknowledged."""
    scenario = client.scenario
    count = scenario.records_per_request
    records = records_json(name, number, count, time.time_ns() // 1000, scenario.record_bytes)
    body = b'{"topic_partitions":[{"topic":"%b","partition":%d,"records":%b}]}' % (
        partition[0].encode(),
        partition[1],
        records,
    )
    began = time.perf_counter()
    answer = await client.request("produce", node, body, 1)
    tally = client.interval.produce
    if answer is None:
        tally.unknown_records += count
        return False
    result = result_of(answer)
    if result is None or not result.ok:
        tally.fail(str(answer.status) if result is None else f"{answer.status} {result.error_type}".rstrip())
        return False
    # Latencies are those of successes: a refusal is fast, and would hide how long an acknowledgement takes.
    tally.latencies.add((time.perf_counter() - began) * 1e6)
    if result.count != count or result.end_offset - result.start_offset + 1 != count:
        client.ledger.violate(f"{partition[0]}:{partition[1]}: {count} records sent, result {result}")
        return False
    tally.records += count
    tally.bytes += count * scenario.record_bytes
    tally.last_at = time.time()
    client.ledger.acknowledge(partition, Acked(result.start_offset, name, number, count))
    return True


def result_of(answer: NodeAnswer) -> Produced | None:
    """Return the result of the one partition of a request; None when the response has none."""
    try:
        results = _DECODER.decode(answer.body).results
    except msgspec.DecodeError:
        return None
    return results[0] if len(results) == 1 else None
