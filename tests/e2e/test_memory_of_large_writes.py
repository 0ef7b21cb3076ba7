"""The peak memory of a large write, over all processes of a server."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from tests.harness.clients.h2_client import H2Client
from tests.harness.clients.raw_client import RawClient
from tests.harness.server.whole_server import WholeServer

pytestmark = pytest.mark.slow

SIZE = 60 << 20
# The body is copied only into the page cache, also if another process receives it.
FACTOR_MAX = 1.5
ENVIRON = {
    "TOPICS_MAX_RECORD_BYTES": str(64 << 20),
    # No checkpoint reads the records of an earlier write during a measurement.
    "TOPICS_WAL_FILE_BYTES": str(2 << 30),
    "TOPICS_CHECKPOINT_INTERVAL_MS": "3600000",
}


def one_record() -> bytes:
    return b'{"records":[{"data":[%b1]}]}' % (b"1," * ((SIZE - 100) // 2))


def many_records() -> bytes:
    record = b'{"data":[%b1]},' % (b"1," * (3000 - 10))
    return b'{"records":[%b]}' % (record * min(10_000, SIZE // len(record)))[:-1]


def with_a_key() -> bytes:
    return one_record()[:-1] + b',"idempotency_key":"k"}'


class Memory:
    def __init__(self, server: WholeServer) -> None:
        self._processes = [server.supervisor, *server.children()]
        self._before = sum(one.reset_peak_bytes() for one in self._processes)

    def grown(self) -> int:
        """Return the growth of memory over all processes, from the peak of each."""
        return sum(one.peak_bytes() for one in self._processes) - self._before

    def close(self) -> None:
        for one in self._processes:
            one.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("server"), shards=2, environ=ENVIRON) as server:
        yield server
        assert server.stop() == 0


@contextmanager
def connected(server: WholeServer, shard: int) -> Iterator[RawClient]:
    """Return a connection that was handed over to this shard."""
    with RawClient(server.port) as client:
        topic = server.topic_of(shard, "first")
        assert client.ask("POST", f"/v0/topics/{topic}", b'{"records":[{"data":1}]}').status in (200, 201)
        yield client


@pytest.mark.parametrize("is_gzip", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("at", [0, 1], ids=["at its shard", "at another shard"])
@pytest.mark.parametrize("body_of", [one_record, many_records, with_a_key])
def test_a_large_write_is_in_memory_once(
    server: WholeServer, body_of: Callable[[], bytes], at: int, is_gzip: bool
) -> None:
    body = body_of()
    topic = server.topic_of(0, "large")
    fields: tuple[str, ...] = ()
    sent = body
    if is_gzip:
        fields = ("content-encoding: gzip",)
        sent = gzip.compress(body, 1)
    with connected(server, at) as client, closing(Memory(server)) as memory:
        answer = client.ask("POST", f"/v0/topics/{topic}", sent, *fields)
        grown = memory.grown()
    print(f"{grown / (1 << 20):.0f} MiB for {len(body) / (1 << 20):.0f} MiB")
    assert answer.status in (200, 201), answer
    assert grown < FACTOR_MAX * len(body)


@pytest.mark.parametrize("is_gzip", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("at", [0, 1], ids=["at its shard", "at another shard"])
def test_a_large_write_over_http2_is_in_memory_once(server: WholeServer, at: int, is_gzip: bool) -> None:
    body = with_a_key()
    with H2Client(server.port) as client:
        first = server.topic_of(at, "first")
        assert client.ask("POST", f"/v0/topics/{first}", b'{"records":[{"data":1}]}').status in (200, 201)
        topic = server.topic_of(0, "large-over-http2")
        memory = Memory(server)
        if is_gzip:
            answer = client.ask(
                "POST", f"/v0/topics/{topic}", gzip.compress(body, 1), "content-encoding: gzip"
            )
        else:
            answer = client.ask("POST", f"/v0/topics/{topic}", body)
        grown = memory.grown()
    print(f"{grown / (1 << 20):.0f} MiB for {len(body) / (1 << 20):.0f} MiB")
    assert answer.status in (200, 201), answer
    assert grown < FACTOR_MAX * len(body)
