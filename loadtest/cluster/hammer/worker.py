"""One client process: `python -m loadtest.cluster.hammer.worker RUN NUMBER TOKEN`.

It writes and reads its share of the partitions, checks what it read, and leaves a report. SIGTERM ends the
writing early; the rest is read and checked as usual.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from loadtest.cluster.hammer.consuming import Consumer
from loadtest.cluster.hammer.load_client import LoadClient
from loadtest.cluster.hammer.producing import produce
from loadtest.cluster.hammer.routing import manifest_owners
from loadtest.cluster.hammer.tally import ClientReport
from loadtest.cluster.run_folder import RunFolder, write_json
from loadtest.cluster.stack.cluster_stack import read_stack

CHECK_SECONDS = 0.05


def report_path(folder: RunFolder, number: int) -> Path:
    return folder.logs / f"client-{number}.json"


async def run(client: LoadClient) -> ClientReport:
    """Run the producers and consumers of a client; return its report."""
    scenario = client.scenario
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, client.ending.set)
    consumers = [Consumer(client, partitions) for partitions in shares(client)]
    async with running(client.probe(), client.sample()):
        await asyncio.gather(*(consumer.find_start() for consumer in consumers))
        followers = [consumer.follow(node) for consumer in consumers for node in client.reads.nodes]
        if scenario.consume == "tail":
            async with running(*followers):
                await write(client)
                read_to_end = await drain(client, consumers)
        else:
            await write(client)
            async with running(*followers):
                read_to_end = await drain(client, consumers)
    client.end_interval()
    client.close()
    verification = client.ledger.check(read_to_end and bool(consumers))
    return ClientReport(client.total, verification, read_to_end)


def shares(client: LoadClient) -> list[list[tuple[str, int]]]:
    """Return the partitions of each consumer of this client."""
    own = range(client.number, client.scenario.consumers, client.scenario.client_processes)
    # A client process without a consumer of its own number reads its partitions with one.
    count = len(own) or min(client.scenario.consumers, 1)
    split = [client.partitions[at::count] for at in range(count)]
    return [partitions for partitions in split if partitions]


async def write(client: LoadClient) -> None:
    """Run the producers for the seconds of the scenario."""
    scenario = client.scenario
    own = range(client.number, scenario.producers, scenario.client_processes)
    if own and client.partitions:
        asyncio.get_running_loop().call_later(scenario.seconds, client.ending.set)
        await asyncio.gather(*(produce(client, number, at) for at, number in enumerate(own)))


async def drain(client: LoadClient, consumers: list[Consumer]) -> bool:
    """Wait until the consumers have read what was acknowledged; return whether they have."""
    for _ in range(math.ceil(client.scenario.drain_seconds / CHECK_SECONDS)):
        if all(consumer.is_done for consumer in consumers):
            return True
        await asyncio.sleep(CHECK_SECONDS)
    return all(consumer.is_done for consumer in consumers)


@contextlib.asynccontextmanager
async def running(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run tasks beside the block, and cancel them at its end; the failure of one is raised then."""
    tasks = [asyncio.ensure_future(one) for one in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome


def main(run_path: str, number: str, token: str) -> None:
    folder = RunFolder(Path(run_path))
    scenario = folder.scenario
    owners = manifest_owners(msgspec.json.decode(folder.manifest.read_bytes()))
    ports = {node.name: node.port for node in read_stack(folder).nodes}

    async def start() -> ClientReport:
        return await run(LoadClient(int(number), scenario, folder, ports, owners, token))

    write_json(report_path(folder, int(number)), uvloop.run(start()))


if __name__ == "__main__":
    main(*sys.argv[1:])
