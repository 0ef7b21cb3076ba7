"""Shared topics followed over HTTP and WebSocket: at workers, at a broker, and from another server."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.harness.clients.event_client import EventClient
from tests.harness.clients.ws_client import WsClient
from tests.harness.server.whole_server import WholeServer

SHARED = {"placement": "shared", "latency": "low"}


def flags(folder: Path) -> list[str]:
    (folder / "store").mkdir(exist_ok=True)
    return [f"--store-url=file://{folder / 'store'}", f"--catalog-url=sqlite://{folder / 'catalog.sqlite'}"]


def append(server: WholeServer, topic: str, *values: object) -> Any:
    return server.ask_json("POST", f"/v0/topics/{topic}", {"records": [{"data": one} for one in values]})


def read(server: WholeServer, topic: str, **body: Any) -> Any:
    return server.ask_json("POST", f"/v0/topics/{topic}/diff", body)


def seqs_of(answer: Any) -> list[int]:
    return [one["$seq"] for one in answer["records"]]


def watch(server: WholeServer, **positions: Any) -> EventClient:
    session = server.ask_json("POST", "/v0/watch", {"topics": positions})
    return EventClient(server.port, session["stream_url"]).begin()


@pytest.mark.parametrize("shards", [2, 0])
def test_shared_topics_are_followed_as_local_ones_are(tmp_path: Path, shards: int) -> None:
    with WholeServer(tmp_path, *flags(tmp_path), shards=shards) as server:
        names = ["shared-a", "shared-b"]
        for name in names:
            server.ask_json("PUT", f"/v0/topics/{name}", SHARED)
        followed = [*names, *([server.topic_of(one, "local") for one in range(2)] if shards else [])]
        for name in followed:
            assert append(server, name, 1)["last_seq"] == 1
        answer = read(server, "shared-a", after_seq=0)
        assert seqs_of(answer) == [1]
        assert seqs_of(read(server, "shared-a", from_ts=answer["records"][0]["$ts"])) == [1]
        with (
            closing(watch(server, **{name: {"tail": True} for name in followed})) as events,
            WsClient(server.port) as socket,
        ):
            socket.say("subscribe", topics=followed, request_id=1)
            positions = socket.expect("subscribed")["topics"]
            assert {name: one["head_seq"] for name, one in positions.items()} == dict.fromkeys(followed, 1)
            for name in followed:
                append(server, name, 2, 3)
            expected = sorted((name, seq) for name in followed for seq in (2, 3))
            assert sorted(events.records(len(expected))) == expected
            received: list[tuple[str, int]] = []
            while len(received) < 3 * len(followed):
                message = socket.read()
                if message["op"] == "record":
                    received += [(message["topic"], one["$seq"]) for one in message["records"]]
            assert sorted(received) == sorted((name, seq) for name in followed for seq in (1, 2, 3))
            socket.say("publish", topic="shared-b", records=[{"data": 4}], request_id=2)
            ops: set[str] = set()
            while not ops >= {"ack", "record"}:
                ops.add(socket.read()["op"])
            assert ops <= {"ack", "record", "caught_up"}
            server.ask_json("DELETE", "/v0/topics/shared-a")
            while (event := events.next()).name != "topic-deleted":
                assert event.name in ("record", "caught-up")
            assert event.data["topic"] == "shared-a"


def test_a_record_of_one_server_is_read_at_another_within_a_second(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("first", "second")]
    for place in places:
        place.mkdir()
    with (
        WholeServer(places[0], *flags(tmp_path), shards=1) as first,
        WholeServer(places[1], *flags(tmp_path), shards=1) as second,
    ):
        first.ask_json("PUT", "/v0/topics/a", SHARED)
        append(first, "a", 1)
        assert seqs_of(read(second, "a", wait_ms=5_000)) == [1]
        with closing(watch(second, a={"tail": True})) as events, second.connect() as client:
            for number in range(2, 6):
                begun = client.start(
                    "POST", "/v0/topics/a/diff", {"after_seq": number - 1, "wait_ms": 20_000}
                )
                append(first, "a", number)
                written_at = time.monotonic()
                assert events.records(1) == [("a", number)]
                answer = client.finish(begun)
                assert time.monotonic() - written_at < 1.0
                assert seqs_of(answer.json) == [number]
        # By notices of the catalog: the poll is only for those that are lost.
        assert second.ask_json("GET", "/metrics")["heads"]["notices"] >= 4
