"""Topic streams of a whole server: `GET /v0/topics/:topic/stream` and `GET /v0/stream`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.harness.clients.event_client import EventClient, H2Events
from tests.harness.clients.h2_client import H2Client
from tests.harness.clients.raw_client import RawClient, request_bytes
from tests.harness.server.whole_server import WholeServer

LINES = "accept: application/x-ndjson"


@pytest.fixture(scope="module", params=[1, 2])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeServer]:
    with WholeServer(tmp_path_factory.mktemp("streams"), shards=request.param) as running:
        yield running


def append(server: WholeServer, topic: str, *data: object) -> None:
    body = {"records": [{"data": one, "tag": "odd" if one % 2 else "even"} for one in data]}  # type: ignore[operator]
    server.ask_json("POST", f"/v0/topics/{topic}", body)


def names(server: WholeServer, prefix: str) -> list[str]:
    return [server.topic_of(shard, prefix) for shard in range(server.shards)]


def one_stream(server: WholeServer, topic: str, query: str = "", *fields: str) -> EventClient:
    return EventClient(server.port, f"/v0/topics/{topic}/stream?{query}", *fields).begin()


class Lines(RawClient):
    """A client of a stream of lines."""

    def __init__(self, server: WholeServer, target: str, *fields: str) -> None:
        super().__init__(server.port)
        self.send(request_bytes("GET", target, None, LINES, *fields))
        head = self._read_until(b"\r\n\r\n").decode()
        assert head.startswith("HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson"), head

    def next(self) -> Any:
        return json.loads(self._read_until(b"\n"))

    def records(self, count: int) -> list[tuple[str, int]]:
        records: list[tuple[str, int]] = []
        while len(records) < count:
            line = self.next()
            if "$event" not in line:
                records.append((line.get("$topic", ""), line["$seq"]))
        return records


def test_a_stream_has_the_records_that_exist_and_those_that_follow(server: WholeServer) -> None:
    for topic in names(server, "tail"):
        append(server, topic, 1, 2)
        with one_stream(server, topic) as client:
            assert client.records(2) == [(topic, 1), (topic, 2)]
            append(server, topic, 3)
            assert client.records(1) == [(topic, 3)]
        with Lines(server, f"/v0/topics/{topic}/stream?last=1&include_tags=true") as lines:
            line = lines.next()
            assert (line["$seq"], line["$tag"], line["data"]) == (3, "odd", 3)
            assert lines.next()["$event"] == "caught-up"


def test_a_stream_of_http2_is_opened_at_any_shard(server: WholeServer) -> None:
    with H2Client(server.port) as client:
        for topic in names(server, "h2"):
            append(server, topic, 1)
            for target in (f"/v0/topics/{topic}/stream", f"/v0/stream?topics={topic},h2-*"):
                events = H2Events(client, target)
                assert events.records(1) == [(topic, 1)]


def test_patterns_find_topics_of_all_shards_soon(server: WholeServer) -> None:
    old, new = names(server, "wide.old"), names(server, "wide.new")
    for topic in old:
        append(server, topic, 1)
    with ExitStack() as stack:
        events = stack.enter_context(EventClient(server.port, "/v0/stream?topics=wide.*&tail=true").begin())
        lines = stack.enter_context(Lines(server, "/v0/stream?topics=wide.*"))
        assert sorted(lines.records(len(old))) == sorted((topic, 1) for topic in old)
        # The stream is open: its events say so.
        assert [events.next().name for _ in old] == ["caught-up"] * len(old)
        for topic in (*new, *old):
            append(server, topic, 1)
        expected = sorted([(topic, 1) for topic in new] + [(topic, 2) for topic in old])
        assert sorted(events.records(len(expected))) == expected
        assert sorted(lines.records(len(expected))) == expected


def test_a_filtered_stream_with_a_limit(server: WholeServer) -> None:
    (topic, *_) = names(server, "filtered")
    append(server, topic, *range(1, 20))
    with one_stream(server, topic, "match=odd&limit=4") as client:
        events = client.rest()
    seqs = [record["$seq"] for event in events if event.name == "record" for record in event.data["records"]]
    assert (seqs, events[-1].name, events[-1].data) == ([1, 3, 5, 7], "end", {"reason": "limit"})
    with one_stream(server, topic, "match=odd&limit=1", f"last-event-id: {events[-1].id}") as client:
        assert client.records(1) == [(topic, 9)]


def test_since_is_a_time_or_a_duration(server: WholeServer) -> None:
    (topic, *_) = names(server, "timed")
    append(server, topic, 1)
    time.sleep(0.05)
    between = int(time.time() * 1000)
    time.sleep(0.05)
    append(server, topic, 2)
    for query, seqs in ((f"since={between}", [2]), ("since=10m", [1, 2]), ("since=-10m", [1, 2])):
        with one_stream(server, topic, query) as client:
            assert [seq for _, seq in client.records(len(seqs))] == seqs
    with one_stream(server, topic, "since=1ms") as client:
        assert client.next().name == "caught-up"


def test_refusals(server: WholeServer) -> None:
    with RawClient(server.port) as client:
        for target, status, code in (
            ("/v0/topics/absent/stream?missing=refuse", 404, "topic_not_found"),
            ("/v0/topics/absent/stream?form=lines", 400, "invalid_request"),
            ("/v0/topics/a%20b/stream", 400, "invalid_request"),
            ("/v0/stream", 400, "invalid_request"),
            ("/v0/stream?topics=a&after_seq=1", 400, "invalid_request"),
        ):
            answer = client.ask("GET", target)
            assert (answer.status, answer.code) == (status, code), (target, answer)
        answer = client.ask("GET", "/v0/stream?topics=a", None, "accept: application/json")
        assert (answer.status, answer.code) == (406, "not_acceptable")
        assert client.ask("HEAD", "/v0/topics/absent/stream").status == 200


def create_session(server: WholeServer, *words: str) -> str:
    body = {"topics": {word: {} for word in words}, "missing": "wait"}
    return str(server.ask_json("POST", "/v0/watch", body)["stream_url"])


def test_a_session_finds_topics_of_all_shards_over_both_protocols(server: WholeServer) -> None:
    old, new, later = names(server, "found.old"), names(server, "found.new"), names(server, "found-later")
    for topic in old:
        append(server, topic, 1)
    target = create_session(server, "found.*", *later)
    with EventClient(server.port, target).begin() as client:
        assert sorted(client.records(len(old))) == sorted((topic, 1) for topic in old)
        for topic in (*new, *later):
            append(server, topic, 1)
        expected = sorted((topic, 1) for topic in (*new, *later))
        assert sorted(client.records(len(expected))) == expected
        for topic in new:
            append(server, topic, 2)
        event = client.next()
        while event.name != "record":
            event = client.next()
    with H2Client(server.port) as connection:
        rest = H2Events(connection, target, f"last-event-id: {event.id}").records(len(new) - 1)
        assert sorted([(event.data["topic"], 2), *rest]) == sorted((topic, 2) for topic in new)


class ResumingReader:
    """A reader of a stream that opens it again with the last id when its worker is killed."""

    def __init__(self, server: WholeServer, target: str) -> None:
        self._server = server
        self._target = target
        self._last_id = ""
        self.received: dict[str, list[int]] = {}
        self.client = self._open()

    def _open(self) -> EventClient:
        fields = [f"last-event-id: {self._last_id}"] if self._last_id else []
        while True:
            client = EventClient(self._server.port, self._target, *fields)
            try:
                return client.begin()
            except (OSError, AssertionError):
                # 503 while a shard is away, or the worker was killed before the head was complete.
                client.close()
                time.sleep(0.05)

    def read(self, count: int) -> None:
        """Read until so many records came."""
        while sum(map(len, self.received.values())) < count:
            try:
                if self.client.is_at_end():
                    raise ConnectionResetError
                event = self.client.next()
            except OSError:
                self.client.close()
                self.client = self._open()
                continue
            self._last_id = event.id or self._last_id
            if event.name == "record":
                seqs = [record["$seq"] for record in event.data["records"]]
                self.received.setdefault(event.data["topic"], []).extend(seqs)


@pytest.mark.slow
@pytest.mark.parametrize("is_session", [False, True])
def test_a_stream_continues_while_shards_are_killed(server: WholeServer, is_session: bool) -> None:
    """Each record once and in order, also of topics that are created between two kills."""
    prefix = "killed-watch" if is_session else "killed"
    target = create_session(server, f"{prefix}.*") if is_session else f"/v0/stream?topics={prefix}.*"
    reader, count = ResumingReader(server, target), 0
    topics = []
    for number in range(4):
        shard = number % server.shards
        topics.append(server.topic_of(shard, f"{prefix}.{number}"))
        for topic in topics:
            append(server, topic, 1, 2)
        count += 2 * len(topics)
        reader.read(count - 1)
        server.kill_worker(shard)
        server.wait_for_shard(shard)
        reader.read(count)
    reader.client.close()
    assert reader.received == {
        topic: list(range(1, 2 * (len(topics) - at) + 1)) for at, topic in enumerate(topics)
    }
