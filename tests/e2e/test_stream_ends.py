"""Streams ended by the server name the reason and where to resume, and no record is lost."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.clients.event_client import Event, EventClient
from tests.harness.clients.raw_client import RawClient
from tests.harness.output import prometheus_text
from tests.harness.server.whole_server import WholeServer
from topicsd.stream.event_stream import PAUSED_SECONDS_MAX

SHARDS = 2
STREAMS = 200
TOPICS = 10
DRAIN_SECONDS = 10.0
RECORDS_MORE = 5
NEVER_READING = 20
RECORD_BYTES = 20_000
# Per unread stream: the worker keeps about one chunk, the kernel little more.
STREAM_BYTES_MAX = 512 << 10
IN_FLIGHT_BYTES_MAX = 1 << 20
GROWTH_BYTES_MAX = 24 << 20

pytestmark = pytest.mark.slow


def session(port: int, topic: str) -> str:
    """Return the path of a stream from the beginning."""
    with RawClient(port) as client:
        body = b'{"topics":{"%b":{"from_seq":0}},"limit":20}' % topic.encode()
        answer = client.ask("POST", "/v0/watch", body)
    assert answer.status == 200, answer
    return str(answer.json["stream_url"])


def append(client: RawClient, topic: str, data: bytes = b"1") -> int:
    """Append a record; return the status."""
    return client.ask("POST", f"/v0/topics/{topic}", b'{"records":[{"data":%b}]}' % data).status


def seqs(events: list[Event]) -> list[int]:
    return [record["$seq"] for event in events if event.name == "record" for record in event.data["records"]]


def open_streams(port: int) -> int:
    with RawClient(port) as client:
        text = client.ask("GET", "/v0/metrics").body.decode()
    return int(prometheus_text.parse(text)["topics_sse_connections"].total())


def write_until_refused(port: int, topics: list[str], ended: threading.Event) -> None:
    while not ended.wait(0.001):
        for topic in topics:
            try:
                with RawClient(port) as client:
                    if append(client, topic) == 503:
                        return
            except ConnectionError:
                return


def test_every_stream_ends_with_an_event_at_a_stop_and_resumes_after_a_restart(tmp_path: Path) -> None:
    with WholeServer(tmp_path, f"--drain-seconds={DRAIN_SECONDS:.0f}", shards=SHARDS) as server:
        topics = [server.topic_of(number % SHARDS, f"t{number}-") for number in range(TOPICS)]
        with RawClient(server.port) as client:
            assert {append(client, topic) for topic in topics} == {201}
        watched = [topics[number % TOPICS] for number in range(STREAMS)]
        targets = [session(server.port, topic) for topic in watched]
        with ExitStack() as stack:
            streams = [stack.enter_context(EventClient(server.port, target)) for target in targets]
            for stream in streams:
                stream.begin()
            ended = threading.Event()
            writer = threading.Thread(target=write_until_refused, args=(server.port, topics, ended))
            writer.start()
            time.sleep(0.5)
            began = time.monotonic()
            assert server.stop() == 0
            took = time.monotonic() - began
            ended.set()
            writer.join()
            received = [stream.rest() for stream in streams]
        assert took < DRAIN_SECONDS
        for events in received:
            last = events[-1]
            assert (last.name, last.data["code"]) == ("error", "shutting_down"), last
            assert last.id
            assert last.data["retry_after_ms"] > 0
        print(f"stopped in {took:.2f} s; {sum(map(len, map(seqs, received)))} records were read before")
        server.start()
        with RawClient(server.port) as client:
            for topic in topics * RECORDS_MORE:
                assert append(client, topic) == 200
            heads = {topic: client.ask("GET", f"/v0/topics/{topic}").json["head_seq"] for topic in topics}
        for topic, target, events in zip(watched, targets, received, strict=True):
            with EventClient(server.port, target, f"last-event-id: {events[-1].id}") as stream:
                stream.begin()
                while seqs(events)[-1] < heads[topic]:
                    events.append(stream.next())
            assert seqs(events) == list(range(1, heads[topic] + 1))
        assert server.stop() == 0


def test_a_watcher_that_never_reads_uses_no_memory_and_is_disconnected(tmp_path: Path) -> None:
    with WholeServer(tmp_path, "--page-cache-bytes=1MiB", shards=1) as server, ExitStack() as stack:
        record = b'"%b"' % (b"x" * RECORD_BYTES)
        with RawClient(server.port) as client:
            for _ in range(100):
                append(client, "big", record)
        targets = [session(server.port, "big") for _ in range(NEVER_READING)]
        worker = server.a_worker(0)
        stack.callback(worker.close)
        before = worker.resident_bytes()
        streams = [
            stack.enter_context(EventClient(server.port, target, buffer_bytes=4096)) for target in targets
        ]
        began = time.monotonic()
        with RawClient(server.port) as client, EventClient(server.port, targets[0]) as reader:
            # It takes over the session and reads; the unread streams do not delay it.
            reader.begin()
            while seqs([reader.next()])[-1:] != [100]:
                pass
            most, head = worker.resident_bytes() - before, 100
            print(f"{NEVER_READING} unread streams: {most / NEVER_READING / 1024:,.0f} KiB each")
            assert most < NEVER_READING * STREAM_BYTES_MAX
            # The stream that lost its session was ended first. Those that still do not read are disconnected.
            received = [streams[0].begin().rest()]
            server.wait_for(lambda: open_streams(server.port) == NEVER_READING, "all streams are counted")
            while open_streams(server.port) > 1:
                assert time.monotonic() - began < 2 * PAUSED_SECONDS_MAX
                assert append(client, "big", record) == 200
                head += 1
                while seqs([event := reader.next()])[-1:] != [head]:
                    assert event.name == "caught-up", event
                most = max(most, worker.resident_bytes() - before)
                time.sleep(0.05)
        print(f"{most / (1 << 20):,.1f} MiB more at most, {head * RECORD_BYTES / 1e6:,.0f} MB were written")
        assert most < NEVER_READING * STREAM_BYTES_MAX + GROWTH_BYTES_MAX
        # All at once, because of the timeout.
        with ThreadPoolExecutor(NEVER_READING) as readers:
            received += readers.map(lambda stream: stream.begin().rest(), streams[1:])
        for number, events in enumerate(received):
            last = events[-1]
            assert last.name == "error", last
            assert last.data["code"] == ("slow_consumer" if number else "taken_over"), last
            assert seqs(events) == list(range(1, len(seqs(events)) + 1))
            assert len(seqs(events)) * RECORD_BYTES < IN_FLIGHT_BYTES_MAX, "the kernel buffered too much"
            if number:
                with EventClient(server.port, targets[number], f"last-event-id: {last.id}") as again:
                    assert seqs([again.begin().next()])[0] == seqs(events)[-1] + 1
        assert server.stop() == 0
