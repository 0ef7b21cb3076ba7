"""Create the partitions of a scenario before the load, so that no write has to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import msgspec

from loadtest.cluster.hammer.http_client import Clients, NoAnswer
from loadtest.cluster.run_folder import RunFolder
from loadtest.cluster.scenario import Scenario
from loadtest.cluster.stack.cluster_stack import read_stack
from topicsd.broker.partition_names import name_of_partition

AT_ONCE: Final = 16
ATTEMPTS: Final = 20
RETRY_SECONDS: Final = 0.25


class NotCreated(Exception):
    """A partition that a node did not create; the text has its answer."""


def topic_name(topic: str, partition: int) -> str:
    """Return the shared topic that is a partition.

    >>> topic_name("load-0", 0), topic_name("load-0", 3)
    ('load-0', 'load-0:3')
    """
    name = name_of_partition(topic, partition)
    assert isinstance(name, str), name
    return name


def precreate(folder: RunFolder) -> int:
    """Create the partitions of a run at its nodes, in turn; return how many there are."""
    scenario = folder.scenario
    ports = {node.name: node.port for node in read_stack(folder).nodes}
    asyncio.run(_create_all(scenario, ports))
    return len(scenario.topic_partitions)


async def _create_all(scenario: Scenario, ports: dict[str, int]) -> None:
    clients = Clients(ports, scenario.request_timeout_seconds)
    names = list(ports)
    places = (
        (names[at % len(names)], topic_name(*partition))
        for at, partition in enumerate(scenario.topic_partitions)
    )
    body = msgspec.json.encode({"placement": "shared", "latency": scenario.latency})

    async def create_next(rest: Iterator[tuple[str, str]]) -> None:
        for node, name in rest:
            await _create(clients, node, name, body)

    try:
        await asyncio.gather(*(create_next(places) for _ in range(AT_ONCE)))
    finally:
        clients.close()


async def _create(clients: Clients, node: str, name: str, body: bytes) -> None:
    """Send PUT until it succeeds; it is safe to repeat, and a topic that exists is as good as a new one."""
    problem = ""
    for _ in range(ATTEMPTS):
        try:
            answer = await clients.put(node, f"/v0/topics/{quote(name, safe='')}", body)
        except NoAnswer as failure:
            problem = str(failure)
        else:
            if answer.status in (200, 201):
                return
            problem = f"{answer.status} {answer.body[:300].decode(errors='replace')}"
            if answer.status not in (429, 503):
                break
        await asyncio.sleep(RETRY_SECONDS)
    raise NotCreated(f"{name} at {node}: {problem}")
