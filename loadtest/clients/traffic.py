"""The traffic of the benchmark: records, topics by shard, and files of targets."""

from __future__ import annotations

import http.client
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from loadtest.ceilings.read_ceiling import COUNT, DATA
from loadtest.clients.generator import Load, run
from loadtest.engine.one_shard import DATA as ORDER
from shared.ipc.placement import Placement

FILL_BATCH = 100


class NotMeasured(Exception):
    """A figure that cannot be measured; the text gives the cause."""


def append_body(count: int, data: bytes = ORDER) -> bytes:
    return b'{"records":[%b]}' % b",".join([b'{"data":%b}' % data] * count)


def lines_body(count: int, data: bytes = ORDER) -> bytes:
    return (data + b"\n") * count


def tagged_body(tags: Iterable[int], data: bytes = ORDER) -> bytes:
    """Return the body of an append with one record for each tag."""
    return b'{"records":[%b]}' % b",".join([b'{"data":%b,"tag":"t%d"}' % (data, tag) for tag in tags])


def diff_targets(path: str, limit: int, first: int = COUNT * 2 // 3) -> str:
    """Write reads at about 100 positions from `first` on, so that no single response serves all."""
    last = COUNT - limit
    step = max(1, (last - first) // 100)
    bodies = [b'{"from_seq":%d,"limit":%d}' % (seq, limit) for seq in range(first, last, step)]
    return targets(path, [("/v0/topics/x/diff", body) for body in bodies])


def targets(path: str, pairs: Iterable[tuple[str, bytes]]) -> str:
    """Write a file for `load --targets`; return its path."""
    with open(path, "wb") as file:
        file.writelines(b"%b\t%b\n" % (target.encode(), body) for target, body in pairs)
    return path


def names_of_shard(shard: int, shards: int) -> Iterator[str]:
    """Yield without end the topics that a server with `shards` shards places on this shard."""
    placement = Placement(shards)
    for number in itertools.count():
        name = f"topic-{number}"
        if placement.owner_of(name) == shard:
            yield name


def names_by_connection(connections: int, each: int, shards: int) -> list[str]:
    """Return topics in the order of `--own-targets`: those of one connection are on one shard.

    >>> names = names_by_connection(3, 2, 2)
    >>> [Placement(2).owner_of(name) for name in names]
    [0, 1, 0, 0, 1, 0]
    """
    of_shard = [names_of_shard(shard, shards) for shard in range(shards)]
    return [next(of_shard[at % connections % shards]) for at in range(connections * each)]


def create_topics(port: int, home: str, names: Iterable[str], config: bytes = b"{}") -> None:
    pairs = [(f"/v0/topics/{name}", config) for name in names]
    path = targets(os.path.join(home, "put"), pairs)
    run_checked(port, Load(method="PUT", targets=path, requests=len(pairs)))


def fill(port: int, name: str) -> None:
    """Write the same records as the ceiling of reads has, in the same order."""
    body = append_body(FILL_BATCH, DATA)
    run_checked(port, Load(path=f"/v0/topics/{name}", body=body, requests=COUNT // FILL_BATCH))


def run_checked(port: int, load: Load) -> None:
    """Run a load that is not measured and must not fail."""
    if fault := run(port, load).fault():
        raise NotMeasured(fault)


def ask(port: int, path: str, body: bytes, method: str = "POST") -> Any:
    """Send one request and return the decoded response; raise NotMeasured if it is not 2xx."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status // 100 != 2:
            raise NotMeasured(f"{path}: {answer.status} {text[:200]!r}")
        return msgspec.json.decode(text)
    finally:
        connection.close()
